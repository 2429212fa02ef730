#include "services/openai/openai_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/kv_layout.h"
#include "services/serving/json_value.h"
#include "worker/text/logit_rules.h"
#include "worker/text/prompt.h"
#include "worker/text/sampler.h"
#include "worker/text/text_stream.h"

namespace hearth {
namespace {

constexpr uint32_t kMaxTtlS = 366 * 24 * 3600;
constexpr uint32_t kMaxAnswers = 16;
constexpr double kMaxBias = 100;
// Of a request that does not say: of completions as OpenAI's API has it; of chats what a long
// answer takes, for memory is set aside for all of them.
constexpr uint32_t kCompletionTokens = 16, kChatTokens = 4096;

// What this server lacks. Values that ask for nothing pass: clients send them.
absl::Status RefuseLacking(JsonValue body) {
  constexpr char kLacking[] = "is not supported by this server; leave it out";
  for (const char* name :
       {"tools", "functions", "tool_choice", "function_call", "audio", "modalities", "prediction",
        "web_search_options", "suffix", "guided_json", "guided_regex", "structured_outputs",
        "prompt_logprobs"}) {
    const std::optional<JsonValue> found = body.Find(name);
    if (!found.has_value() || found->Is("none") || found->Is("auto")) continue;
    const bool is_container = found->is_list() || found->is_object();
    if (is_container && found->size() == 0) continue;
    if (found->is_list() && found->size() == 1 && (*found->elements().begin()).Is("text")) continue;
    return found->Refuse(kLacking);
  }
  if (const auto format = body.Find("response_format"); format.has_value()) {
    const std::optional<JsonValue> type = format->Find("type");
    if (!type.has_value() || !type->Is("text")) {
      return format->Bad("{\"type\": \"text\"}: only text is supported by this server");
    }
  }
  if (const auto salt = body.Find("cache_salt"); salt.has_value()) {
    return salt->Refuse(
        "callers are kept apart by their identity (--identities-file), not by a "
        "salt");
  }
  return absl::OkStatus();
}

// A string, or a list of strings.
absl::Status ReadStops(JsonValue body, v1::GenerateRequest* request) {
  const std::optional<JsonValue> stop = body.Find("stop");
  if (!stop.has_value()) return absl::OkStatus();
  const auto add = [&](JsonValue text) {
    if (!text.is_string()) return text.Bad("a string, or a list of strings");
    const absl::string_view bytes = *text.Text();
    if (bytes.empty() || bytes.size() > kMaxStopStringBytes) {
      return text.Bad(absl::StrCat("a string of 1 to ", kMaxStopStringBytes, " bytes"));
    }
    request->add_stop(std::string(bytes));
    return absl::OkStatus();
  };
  if (!stop->is_list()) return add(*stop);
  if (stop->size() > kMaxStopStrings) {
    return stop->Refuse(
        absl::StrCat("must have at most ", kMaxStopStrings, " strings; got ", stop->size()));
  }
  for (const JsonValue text : stop->elements()) {
    if (absl::Status status = add(text); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadSeconds(std::optional<JsonValue> text, uint32_t* seconds) {
  if (!text.has_value()) return absl::OkStatus();
  const absl::StatusOr<uint32_t> read = ParseCacheTtl(*text);
  if (read.ok()) *seconds = *read;
  return read.status();
}

absl::Status ReadCacheOptions(JsonValue body, bool* is_explicit, OpenAiRequest* request) {
  JsonFields fields(body);
  fields.Text("prompt_cache_key", &request->cache_key, kMaxCacheKeyBytes);
  const std::optional<JsonValue> options = fields.Find("prompt_cache_options");
  if (!options.has_value()) return fields.status();
  JsonFields inner(*options);
  if (const auto mode = inner.Find("mode"); mode.has_value()) {
    *is_explicit = mode->Is("explicit");
    if (!*is_explicit && !mode->Is("implicit")) return mode->Bad("implicit or explicit");
  }
  inner.Bool("prewarm", &request->prewarm);
  inner.Add(ReadSeconds(inner.Find("ttl"), &request->ttl_s));
  uint32_t keep_s = 0;
  inner.Add(ReadSeconds(inner.Find("keep"), &keep_s));
  request->common.set_keep_s(keep_s);
  if (const auto priority = inner.Find("priority"); priority.has_value()) {
    const absl::StatusOr<int64_t> read = priority->Integer(-kMaxPriority, kMaxPriority);
    if (!read.ok()) return read.status();
    request->common.set_priority(static_cast<int32_t>(*read));
  }
  return inner.status();
}

// At most kMaxListedTokens ids, as the gRPC API takes.
absl::Status ReadIds(std::optional<JsonValue> list, google::protobuf::RepeatedField<uint32_t>* to) {
  if (!list.has_value()) return absl::OkStatus();
  if (list->size() > kMaxListedTokens) {
    return list->Refuse(
        absl::StrCat("must have at most ", kMaxListedTokens, " token ids; got ", list->size()));
  }
  const absl::StatusOr<std::vector<uint32_t>> ids = list->Ids();
  if (!ids.ok()) return ids.status();
  to->Add(ids->begin(), ids->end());
  return absl::OkStatus();
}

// Its number of keys is bounded while the body is parsed.
absl::Status ReadBiases(std::optional<JsonValue> biases, v1::SamplingParams* sampling) {
  static_assert(kMaxListedTokens == kMaxJsonKeys, "the limit of the gRPC API");
  if (!biases.has_value()) return absl::OkStatus();
  if (!biases->is_object()) return biases->Bad("an object of token ids and numbers");
  for (const JsonField field : biases->fields()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(field.name(), &id)) {
      return biases->Refuse(
          absl::StrCat("must have token ids as keys; got ", Quoted(field.name())));
    }
    const absl::StatusOr<double> bias = field.value().Number(-kMaxBias, kMaxBias);
    if (!bias.ok()) return bias.status();
    (*sampling->mutable_logit_bias())[id] = static_cast<float>(*bias);
  }
  return absl::OkStatus();
}

// How tokens are drawn. The server fills in what the request leaves open.
void ReadSampling(JsonFields* fields, v1::SamplingParams* sampling) {
  sampling->set_server_defaults(true);
  v1::SamplingParams& to = *sampling;
  constexpr uint64_t kMaxInt = std::numeric_limits<int32_t>::max();
  float number = 0;
  if (fields->Number("temperature", 0, 2, &number)) to.set_temperature(number);
  if (fields->Number("top_p", 0, 1, &number)) to.set_top_p(number);
  if (fields->Number("min_p", 0, 1, &number)) to.set_min_p(number);
  if (fields->Number("presence_penalty", -2, 2, &number)) to.set_presence_penalty(number);
  if (fields->Number("frequency_penalty", -2, 2, &number)) to.set_frequency_penalty(number);
  if (fields->Number("repetition_penalty", 0.1, 10, &number)) to.set_repetition_penalty(number);
  uint64_t count = 0;
  const std::optional<JsonValue> top_k = fields->Find("top_k");
  const bool takes_all = top_k.has_value() && top_k->Number(-1, -1).ok();  // vLLM's clients say -1
  if (takes_all) to.set_top_k(0);
  if (!takes_all && fields->Count("top_k", 0, kMaxInt, &count)) {
    to.set_top_k(static_cast<uint32_t>(count));
  }
  if (fields->Count("min_tokens", 0, kMaxInt, &count)) {
    to.set_min_tokens(static_cast<uint32_t>(count));
  }
  if (fields->Count("seed", 0, std::numeric_limits<int64_t>::max(), &count)) to.set_seed(count);
  fields->Add(ReadBiases(fields->Find("logit_bias"), sampling));
  fields->Add(ReadIds(fields->Find("stop_token_ids"), to.mutable_stop_token_ids()));
  fields->Add(ReadIds(fields->Find("bad_token_ids"), to.mutable_bad_token_ids()));
}

// The fields that chats and completions have in common.
absl::Status ReadCommon(JsonValue body, uint32_t max_tokens, OpenAiRequest* request) {
  constexpr uint64_t kMaxUint = std::numeric_limits<uint32_t>::max();
  if (absl::Status status = RefuseLacking(body); !status.ok()) return status;
  v1::GenerateRequest* made = &request->common;
  JsonFields fields(body);
  uint64_t n = 1, tokens = max_tokens, best = 0;
  bool ignore_eos = false;
  fields.Text("model", &request->model);
  fields.Bool("stream", &request->stream);
  fields.Count("n", 1, kMaxAnswers, &n);
  if (fields.Count("best_of", 0, kMaxUint, &best) && best != n) {
    return fields.Find("best_of")->Bad(absl::StrCat("n, which is ", n));
  }
  fields.Count("max_tokens", 1, kMaxUint, &tokens);
  fields.Count("max_completion_tokens", 1, kMaxUint, &tokens);
  ReadSampling(&fields, made->mutable_sampling());
  fields.Add(ReadStops(body, made));
  fields.Bool("ignore_eos", &ignore_eos);
  if (const auto options = fields.Find("stream_options"); options.has_value()) {
    JsonFields inner(*options);
    inner.Bool("include_usage", &request->include_usage);
    fields.Add(inner.status());
  }
  made->set_ignore_eos(ignore_eos);
  made->set_n(static_cast<uint32_t>(n));
  made->set_max_new_tokens(static_cast<uint32_t>(tokens));
  made->set_fits_context(true);
  made->set_report_writes(true);
  return fields.status();
}

void AskLogprobs(uint64_t alternatives, OpenAiRequest* request) {
  request->logprobs = true;
  request->common.mutable_sampling()->set_report_logprobs(true);
  request->common.mutable_sampling()->set_logprobs(static_cast<uint32_t>(alternatives));
}

// ChatReader: reads the messages of a chat.
struct ChatReader {
  absl::Status ReadMessages(std::optional<JsonValue> messages);
  absl::Status ReadMessage(JsonValue message);
  absl::Status ReadPart(JsonValue part, v1::ChatMessage* made);

  v1::Chat* const chat;
  bool has_breakpoint = false;
  uint32_t ttl_s = 0;  // becomes the longest that a breakpoint asks for
};

absl::Status ChatReader::ReadPart(JsonValue part, v1::ChatMessage* made) {
  if (!part.is_object()) return part.Bad("an object");
  const std::optional<JsonValue> type = part.Find("type"), text = part.Find("text");
  if (!type.has_value() || !type->Is("text")) {
    return part.Refuse(
        absl::StrCat("must be a part of type \"text\", all that this server "
                     "supports; got type ",
                     type.has_value() ? type->Quote() : "nothing"));
  }
  if (!text.has_value()) return part.Refuse("must have a text; it has none");
  const absl::StatusOr<absl::string_view> said = text->Text();
  if (!said.ok()) return said.status();
  v1::ContentPart* out = made->add_parts();
  out->set_text(std::string(*said));
  const std::optional<JsonValue> breakpoint = part.Find("prompt_cache_breakpoint");
  if (!breakpoint.has_value() || breakpoint->IsBool(false)) return absl::OkStatus();
  if (!breakpoint->is_object() && !breakpoint->IsBool(true)) {
    return breakpoint->Bad("an object, true or false");
  }
  out->set_cache_breakpoint(true);
  has_breakpoint = true;
  uint32_t seconds = 0;
  absl::Status status = ReadSeconds(breakpoint->Find("ttl"), &seconds);
  ttl_s = std::max(ttl_s, seconds);
  return status;
}

absl::Status ChatReader::ReadMessage(JsonValue message) {
  if (!message.is_object()) return message.Bad("an object");
  constexpr char kRoles[] = "system, developer, user or assistant";
  const std::optional<JsonValue> role = message.Find("role"), content = message.Find("content");
  if (!role.has_value()) return message.Refuse(absl::StrCat("must have a role: ", kRoles));
  const bool is_system = role->Is("system") || role->Is("developer");
  if (!is_system && !role->Is("user") && !role->Is("assistant")) return role->Bad(kRoles);
  const std::optional<JsonValue> calls = message.Find("tool_calls");
  const bool is_container = calls.has_value() && (calls->is_list() || calls->is_object());
  if (calls.has_value() && !(is_container && calls->size() == 0)) {
    return calls->Refuse("is not supported by this server");
  }
  if (!content.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(message.Path(), ".content: is missing"));
  }
  v1::ChatMessage* made = chat->add_messages();
  made->set_role(is_system ? "system" : std::string(*role->Text()));
  if (content->is_string()) {
    made->add_parts()->set_text(std::string(*content->Text()));
    return absl::OkStatus();
  }
  if (!content->is_list()) return content->Bad("a string or a list of parts");
  for (const JsonValue part : content->elements()) {
    if (absl::Status status = ReadPart(part, made); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ChatReader::ReadMessages(std::optional<JsonValue> messages) {
  if (!messages.has_value()) return absl::InvalidArgumentError("messages: is missing");
  if (!messages->is_list() || messages->size() == 0) return messages->Bad("a list of messages");
  if (messages->size() > kMaxChatMessages) {
    return messages->Refuse(
        absl::StrCat("must have at most ", kMaxChatMessages, " messages; got ", messages->size()));
  }
  chat->set_strict(true);
  for (const JsonValue message : messages->elements()) {
    if (absl::Status status = ReadMessage(message); !status.ok()) return status;
  }
  if (has_breakpoint || chat->messages(0).role() != "system") return absl::OkStatus();
  auto* parts = chat->mutable_messages(0)->mutable_parts();
  if (!parts->empty()) parts->rbegin()->set_cache_breakpoint(true);
  return absl::OkStatus();
}

// A text, or a list of token ids.
absl::Status AddPrompt(JsonValue prompt, uint32_t context_tokens, OpenAiRequest* request) {
  v1::PromptInput made;
  if (prompt.is_string()) {
    made.set_text(std::string(*prompt.Text()));
  } else if (prompt.size() > context_tokens) {
    return prompt.Refuse(
        absl::StrCat("must fit the context of ", context_tokens, " tokens; got ", prompt.size()));
  } else if (prompt.is_list() && prompt.size() > 0) {
    const absl::StatusOr<std::vector<uint32_t>> ids = prompt.Ids();
    if (!ids.ok()) return ids.status();
    made.mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  } else {
    return prompt.Bad("a text, a list of texts, of token ids, or of lists of these");
  }
  request->prompts.push_back(std::move(made));
  return absl::OkStatus();
}

absl::Status ReadPrompts(JsonValue body, uint32_t context_tokens, OpenAiRequest* request) {
  const std::optional<JsonValue> prompt = body.Find("prompt");
  if (!prompt.has_value()) return absl::InvalidArgumentError("prompt: is missing");
  const bool is_one =
      !prompt->is_list() || prompt->size() == 0 || (*prompt->elements().begin()).is_number();
  if (is_one) return AddPrompt(*prompt, context_tokens, request);
  if (prompt->size() > kMaxPrompts) {
    return prompt->Refuse(
        absl::StrCat("must have at most ", kMaxPrompts, " prompts; got ", prompt->size()));
  }
  for (const JsonValue one : prompt->elements()) {
    if (absl::Status status = AddPrompt(one, context_tokens, request); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t OpenAiRequest::bytes() const {
  uint64_t sum = common.SpaceUsedLong();
  for (const v1::PromptInput& prompt : prompts) sum += prompt.SpaceUsedLong();
  return sum;
}

absl::StatusOr<JsonDocument> ParseBody(absl::string_view body,
                                       std::function<bool(uint64_t bytes)> hold) {
  JsonLimits limits;
  limits.hold = std::move(hold);
  absl::StatusOr<JsonDocument> document = JsonDocument::Parse(body, "the body", limits);
  if (!document.ok()) return document;
  if (absl::Status status = document->root().CheckObject(); !status.ok()) return status;
  return document;
}

absl::StatusOr<uint32_t> ParseCacheTtl(JsonValue ttl) {
  uint64_t seconds = 0;
  if (ttl.is_string()) {
    absl::string_view text = *ttl.Text();
    constexpr std::pair<char, uint32_t> kUnits[] = {
        {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 24 * 3600}};
    uint32_t count = 0, factor = 0;
    for (const auto& [unit, unit_s] : kUnits) {
      if (!text.empty() && text.back() == unit) factor = unit_s;
    }
    if (factor > 0 && absl::SimpleAtoi(text.substr(0, text.size() - 1), &count)) {
      seconds = uint64_t{count} * factor;
    }
  } else if (const absl::StatusOr<uint64_t> count = ttl.Count(1, kMaxTtlS); count.ok()) {
    seconds = *count;
  }
  if (seconds == 0 || seconds > kMaxTtlS) {
    return ttl.Bad("\"5m\", \"1h\" or a number of seconds, at most a year");
  }
  return static_cast<uint32_t>(seconds);
}

absl::StatusOr<OpenAiRequest> ParseChat(JsonValue body) {
  OpenAiRequest request;
  request.is_chat = true;
  bool is_explicit = false, logprobs = false;
  uint64_t alternatives = 0;
  absl::Status status = ReadCommon(body, kChatTokens, &request);
  if (status.ok()) status = ReadCacheOptions(body, &is_explicit, &request);
  JsonFields fields(body);
  fields.Add(status);
  fields.Bool("logprobs", &logprobs);
  fields.Count("top_logprobs", 0, kMaxTopLogprobs, &alternatives);
  if (!fields.status().ok()) return fields.status();
  if (logprobs) AskLogprobs(alternatives, &request);
  v1::PromptInput prompt;
  ChatReader reader{prompt.mutable_chat(), is_explicit, request.ttl_s};
  if (status = reader.ReadMessages(body.Find("messages")); !status.ok()) return status;
  request.ttl_s = reader.ttl_s;
  request.common.set_ttl_s(request.ttl_s);
  request.prompts.push_back(std::move(prompt));
  return request;
}

absl::StatusOr<OpenAiRequest> ParseCompletion(JsonValue body, uint32_t context_tokens) {
  OpenAiRequest request;
  bool is_explicit = false;
  uint64_t alternatives = 0;
  absl::Status status = ReadCommon(body, kCompletionTokens, &request);
  if (status.ok()) status = ReadCacheOptions(body, &is_explicit, &request);
  JsonFields fields(body);
  fields.Add(status);
  fields.Bool("echo", &request.echo);
  if (fields.Count("logprobs", 0, kMaxTopLogprobs, &alternatives)) {
    AskLogprobs(alternatives, &request);
  }
  if (!fields.status().ok()) return fields.status();
  if (request.echo && request.logprobs) {
    request.common.mutable_sampling()->set_prompt_logprobs(static_cast<uint32_t>(alternatives));
  }
  request.common.set_ttl_s(request.ttl_s);
  if (status = ReadPrompts(body, context_tokens, &request); !status.ok()) return status;
  return request;
}

}  // namespace hearth
