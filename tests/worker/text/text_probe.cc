// Helper of the Python oracles: runs this repository's text code. Reads one JSON request per line
// and writes one JSON answer per line. A malformed request is an error of the oracle and ends the
// program.
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/text/chat_template.h"
#include "worker/text/jinja/model_template.h"
#include "worker/text/prompt.h"
#include "worker/text/sampler.h"
#include "worker/text/template_form.h"
#include "worker/text/text_stream.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

std::vector<ChatMessage> MessagesFrom(const Json& json) {
  std::vector<ChatMessage> messages;
  for (const Json& item : json) {
    ChatMessage message{item.at("role"), {}};
    const Json& content = item.at("content");
    if (content.is_string()) message.parts.push_back({content, false});
    for (const Json& part : content.is_array() ? content : Json::array()) {
      message.parts.push_back({part.at("text").get<std::string>(), false});
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

Json Chat(const Json& request, const Tokenizer& tokenizer) {
  const auto chat = RenderChat(
      MessagesFrom(request.at("messages")),
      request.at("add_generation_prompt") ? ChatEnding::kGenerationPrompt : ChatEnding::kClosed);
  if (!chat.ok()) return {{"error", std::string(chat.status().message())}};
  return {{"text", chat->text}, {"ids", tokenizer.Encode(chat->text)}};
}

// Renders a chat as a worker does. A call has the fields of OpenAI's API; its arguments are text.
Json Rendered(const Json& request, const LoadedTokenizer& loaded) {
  ChatInput chat{MessagesFrom(request.at("messages"))};
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const Json& message = request.at("messages")[i];
    chat.messages[i].call_id = message.value("tool_call_id", "");
    chat.messages[i].name = message.value("name", "");
    for (const Json& call : message.value("tool_calls", Json::array())) {
      const Json& function = call.at("function");
      chat.messages[i].calls.push_back(
          {call.at("id"), function.at("name"), function.at("arguments")});
    }
    if (message.value("ends_prefix", false)) chat.messages[i].parts.back().cache_breakpoint = true;
  }
  chat.tools = request.value("tools", std::vector<std::string>());
  chat.strict = request.value("strict", true);
  chat.omit_generation_prompt = !request.value("add_generation_prompt", true);
  chat.continue_final_message = request.value("continue_final_message", false);
  const Tokenizer& tokenizer = *loaded.tokenizer;
  PromptLimits limits{static_cast<uint32_t>(tokenizer.size()), 1U << 20};
  limits.why_no_chats = loaded.why_no_chats;
  limits.chat_template = loaded.chat_template.get();
  const auto prompt =
      BuildPrompt({std::move(chat), {}}, PromptPurpose::kGenerate, &tokenizer, limits);
  if (!prompt.ok()) return {{"error", std::string(prompt.status().message())}};
  return {{"text", prompt->text},
          {"ids", prompt->token_ids},
          {"breakpoints", prompt->breakpoints},
          {"declared", prompt->declared}};
}

Json Prompted(const Json& request, const Tokenizer& tokenizer) {
  const PromptSource source{request.at("text").get<std::string>(), {}};
  const auto prompt = BuildPrompt(source, PromptPurpose::kGenerate, &tokenizer,
                                  {static_cast<uint32_t>(tokenizer.size()), 1U << 20});
  if (!prompt.ok()) return {{"error", std::string(prompt.status().message())}};
  return {{"ids", prompt->token_ids}};
}

Json Common(const Json& request, const Tokenizer& tokenizer) {
  Encoding encoding;
  const auto end = tokenizer.EncodeWithOffsets(request.at("text").get<std::string>(),
                                               request.at("offsets"), EncodeRules(), &encoding);
  if (end != EncodeEnd::kDone) return {{"error", "too costly"}};
  return {{"common_tokens", encoding.common_tokens}};
}

Json Streamed(const Json& request, const Tokenizer& tokenizer) {
  TextStream stream(&tokenizer, {});
  std::string text;
  for (const int32_t id : request.at("ids")) text += stream.Push(id);
  return {{"text", text + stream.Finish()}};
}

Json Filtered(const Json& request) {
  const std::vector<float> logits = request.at("logits");
  SamplingParams params;
  params.temperature = request.at("temperature");
  params.top_k = request.at("top_k");
  params.top_p = request.at("top_p");
  params.min_p = request.at("min_p");
  Sampler sampler;
  Json ids = Json::array(), weights = Json::array();
  for (const Candidate& candidate : sampler.Filter(logits, params)) {
    ids.push_back(candidate.id);
    weights.push_back(candidate.weight);
  }
  return {{"ids", ids}, {"weights", weights}};
}

Json Ruled(const Json& request) {
  std::vector<float> logits = request.at("logits");
  const std::vector<float> raw = logits;
  const std::vector<int32_t> prompt = request.at("prompt"), answer = request.at("answer");
  TokenRules rules;
  rules.repetition_penalty = request.at("repetition_penalty");
  rules.presence_penalty = request.at("presence_penalty");
  rules.frequency_penalty = request.at("frequency_penalty");
  for (const Json& bias : request.at("logit_bias")) rules.logit_bias.emplace_back(bias[0], bias[1]);
  rules.bad_ids = request.at("bad_ids").get<std::vector<int32_t>>();
  rules.min_tokens = request.at("min_tokens");
  LogitRules applied(rules, request.at("eos").get<std::vector<int32_t>>(), prompt, 0);
  applied.Follow(answer);
  applied.Apply(absl::MakeSpan(logits));
  const Json changed = logits;
  applied.Restore(absl::MakeSpan(logits));
  return {{"logits", changed}, {"restored", logits == raw}};
}

Json Logprobs(const Json& request) {
  const std::vector<float> logits = request.at("logits");
  SamplingParams params;
  params.logprobs = kMaxTopLogprobs;
  const auto token = Sampler().Sample(logits, params, 0);
  if (!token.ok()) return {{"error", std::string(token.status().message())}};
  Json top = Json::array();
  for (const TokenLogprob& entry : token->top) top.push_back({entry.id, entry.logprob});
  return {{"id", token->id}, {"logprob", token->logprob}, {"top", top}};
}

Json Answer(const Json& request, const LoadedTokenizer& loaded) {
  const std::string op = request.at("op");
  const Tokenizer& tokenizer = *loaded.tokenizer;
  if (op == "encode") return {{"ids", tokenizer.Encode(request.at("text").get<std::string>())}};
  if (op == "decode") {
    return {{"text", tokenizer.Decode(request.at("ids"), request.at("skip_special"))}};
  }
  if (op == "common") return Common(request, tokenizer);
  if (op == "prompt") return Prompted(request, tokenizer);
  if (op == "stream") return Streamed(request, tokenizer);
  if (op == "chat") return Chat(request, tokenizer);
  if (op == "render") return Rendered(request, loaded);
  if (op == "why_no_chats") return {{"why", loaded.why_no_chats}};
  if (op == "template")
    return {{"is_gemma", RendersAsGemma(request.at("text").get<std::string>())}};
  if (op == "filter") return Filtered(request);
  if (op == "rules") return Ruled(request);
  if (op == "logprobs") return Logprobs(request);
  return {{"error", "unknown op " + op}};
}

int Main(const std::string& model_dir) {
  const auto loaded = LoadTokenizer(model_dir);
  if (!loaded.ok() || loaded->tokenizer == nullptr) {
    std::cerr << (loaded.ok() ? loaded->why_none : loaded.status().ToString()) << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(Json::parse(line), *loaded).dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: text_probe MODEL_DIR\n";
    return 2;
  }
  return hearth::Main(argv[1]);
}
