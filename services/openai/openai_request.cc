#include "services/openai/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr size_t kMaxPrompts = 64;
constexpr uint32_t kMaxTtlS = 366 * 24 * 3600;
// Of a request that does not say: of completions as OpenAI's API has it; of chats what a long
// answer takes, for memory is set aside for all of them.
constexpr uint32_t kCompletionTokens = 16, kChatTokens = 4096;

absl::Status Bad(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}
absl::Status Lacking(absl::string_view field) {
  return Bad(field, "is not supported by this server; leave it out");
}

// Null and absent are the same.
const json* Find(const json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

absl::Status ReadBool(const json& object, const char* name, bool* value) {
  const json* found = Find(object, name);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_boolean()) return Bad(name, "is neither true nor false");
  *value = found->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadText(const json& object, const char* name, std::string* value) {
  const json* found = Find(object, name);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_string()) return Bad(name, "is no string");
  *value = found->get<std::string>();
  return absl::OkStatus();
}

// A number without a fraction, in [least, most].
absl::Status ReadCount(const json& object, const char* name, uint64_t least, uint64_t most,
                       uint64_t* value) {
  const json* found = Find(object, name);
  if (found == nullptr) return absl::OkStatus();
  const bool is_count =
      found->is_number_unsigned() ||
      (found->is_number_float() && found->get<double>() >= 0 && found->get<double>() < 1e15 &&
       std::floor(found->get<double>()) == found->get<double>());
  if (!is_count || found->get<uint64_t>() < least || found->get<uint64_t>() > most) {
    return Bad(name,
               absl::StrCat("is ", found->dump(), "; a whole number from ", least, " to ", most));
  }
  *value = found->get<uint64_t>();
  return absl::OkStatus();
}

absl::Status ReadNumber(const json& object, const char* name, double least, double most,
                        float* value) {
  const json* found = Find(object, name);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_number() || !(found->get<double>() >= least && found->get<double>() <= most)) {
    return Bad(name, absl::StrCat("is ", found->dump(), "; a number from ", least, " to ", most));
  }
  *value = found->get<float>();
  return absl::OkStatus();
}

// What this server lacks. Values that ask for nothing pass: clients send them.
absl::Status RefuseLacking(const json& body) {
  for (const char* name :
       {"tools", "functions", "tool_choice", "function_call", "audio", "modalities", "prediction",
        "web_search_options", "suffix", "guided_json", "guided_regex", "structured_outputs",
        "prompt_logprobs"}) {
    const json* found = Find(body, name);
    if (found == nullptr || found->empty() || *found == "none" || *found == "auto" ||
        *found == json{"text"}) {
      continue;
    }
    return Lacking(name);
  }
  const json* format = Find(body, "response_format");
  if (format != nullptr && format->value("type", "") != "text") {
    return Bad("response_format", "only text is supported by this server");
  }
  const json* best = Find(body, "best_of");
  if (best != nullptr && *best != body.value("n", json(1))) {
    return Lacking("best_of");
  }
  if (Find(body, "cache_salt") != nullptr) {
    return Bad("cache_salt",
               "callers are kept apart by their identity (--identities-file), not by a salt");
  }
  return absl::OkStatus();
}

absl::Status ReadStops(const json& body, v1::GenerateRequest* request) {
  const json* stop = Find(body, "stop");
  if (stop == nullptr) return absl::OkStatus();
  const json list = stop->is_array() ? *stop : json::array({*stop});
  for (const json& text : list) {
    if (!text.is_string()) return Bad("stop", "is neither a string nor a list of strings");
    request->add_stop(text.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadPriority(const json& options, v1::GenerateRequest* made) {
  const json* found = Find(options, "priority");
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_number_integer() || std::abs(found->get<double>()) > kMaxPriority) {
    return Bad("priority", absl::StrCat("is ", found->dump(), "; priorities are whole, from ",
                                        -kMaxPriority, " to ", kMaxPriority));
  }
  made->set_priority(found->get<int32_t>());
  return absl::OkStatus();
}

absl::Status ReadCacheOptions(const json& body, bool* is_explicit, OpenAiRequest* request,
                              v1::GenerateRequest* made) {
  if (absl::Status status = ReadText(body, "prompt_cache_key", &request->cache_key); !status.ok()) {
    return status;
  }
  const json* options = Find(body, "prompt_cache_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return Bad("prompt_cache_options", "is no object");
  std::string mode = "implicit";
  absl::Status status = ReadText(*options, "mode", &mode);
  if (status.ok() && mode != "implicit" && mode != "explicit") {
    status = Bad("mode", "is neither implicit nor explicit");
  }
  if (status.ok()) status = ReadBool(*options, "prewarm", &request->prewarm);
  if (const json* ttl = Find(*options, "ttl"); status.ok() && ttl != nullptr) {
    const absl::StatusOr<uint32_t> seconds = ParseCacheTtl(*ttl);
    status = seconds.status();
    if (status.ok()) request->ttl_s = *seconds;
  }
  if (const json* keep = Find(*options, "keep"); status.ok() && keep != nullptr) {
    const absl::StatusOr<uint32_t> seconds = ParseCacheTtl(*keep, "keep");
    status = seconds.status();
    if (status.ok()) made->set_keep_s(*seconds);
  }
  if (status.ok()) status = ReadPriority(*options, made);
  *is_explicit = mode == "explicit";
  return status.ok()
             ? status
             : absl::InvalidArgumentError(absl::StrCat("prompt_cache_options.", status.message()));
}

// A list of token ids, or of one.
absl::Status ReadIds(const json& body, const char* name,
                     google::protobuf::RepeatedField<uint32_t>* ids) {
  const json* found = Find(body, name);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_array()) return Bad(name, "is no list of token ids");
  for (const json& id : *found) {
    if (!id.is_number_unsigned() || id > std::numeric_limits<uint32_t>::max()) {
      return Bad(name, absl::StrCat(id.dump(), " is no token id"));
    }
    ids->Add(id.get<uint32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadBiases(const json& body, v1::SamplingParams* sampling) {
  const json* found = Find(body, "logit_bias");
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_object()) return Bad("logit_bias", "is no object of token ids and numbers");
  for (const auto& [text, bias] : found->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(text, &id) || !bias.is_number()) {
      return Bad("logit_bias",
                 absl::StrCat("\"", text, "\": ", bias.dump(), " is no token id and number"));
    }
    (*sampling->mutable_logit_bias())[id] = bias.get<float>();
  }
  return absl::OkStatus();
}

// What is said of how tokens are drawn; the rest is the server's.
absl::Status ReadSampling(const json& body, v1::SamplingParams* sampling) {
  sampling->set_server_defaults(true);
  const auto number = [&](const char* name, double least, double most, const auto& set) {
    float value = 0;
    absl::Status status = ReadNumber(body, name, least, most, &value);
    if (status.ok() && Find(body, name) != nullptr) set(value);
    return status;
  };
  const auto count = [&](const char* name, uint64_t most, const auto& set) {
    uint64_t value = 0;
    absl::Status status = ReadCount(body, name, 0, most, &value);
    if (status.ok() && Find(body, name) != nullptr) set(value);
    return status;
  };
  const json* top_k = Find(body, "top_k");
  const bool takes_all = top_k != nullptr && *top_k == -1;  // as vLLM's clients say it
  if (takes_all) sampling->set_top_k(0);
  constexpr uint64_t kMaxInt = std::numeric_limits<int32_t>::max();
  v1::SamplingParams& to = *sampling;
  for (const absl::Status& status :
       {number("temperature", 0, 2, [&](float value) { to.set_temperature(value); }),
        number("top_p", 0, 1, [&](float value) { to.set_top_p(value); }),
        number("min_p", 0, 1, [&](float value) { to.set_min_p(value); }),
        number("presence_penalty", -2, 2, [&](float value) { to.set_presence_penalty(value); }),
        number("frequency_penalty", -2, 2, [&](float value) { to.set_frequency_penalty(value); }),
        number("repetition_penalty", 0.1, 10,
               [&](float value) { to.set_repetition_penalty(value); }),
        takes_all ? absl::OkStatus()
                  : count("top_k", kMaxInt, [&](uint64_t value) { to.set_top_k(value); }),
        count("min_tokens", kMaxInt, [&](uint64_t value) { to.set_min_tokens(value); }),
        count("seed", std::numeric_limits<int64_t>::max(),
              [&](uint64_t value) { to.set_seed(value); }),
        ReadBiases(body, sampling), ReadIds(body, "stop_token_ids", to.mutable_stop_token_ids()),
        ReadIds(body, "bad_token_ids", to.mutable_bad_token_ids())}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// What chats and completions have in common, into `made`.
absl::Status ReadCommon(const json& body, uint32_t max_tokens, OpenAiRequest* request,
                        v1::GenerateRequest* made) {
  if (absl::Status status = RefuseLacking(body); !status.ok()) return status;
  uint64_t n = 1, tokens = max_tokens;
  for (const absl::Status& status :
       {ReadText(body, "model", &request->model), ReadBool(body, "stream", &request->stream),
        ReadCount(body, "n", 1, 16, &n),
        ReadCount(body, "max_tokens", 1, std::numeric_limits<uint32_t>::max(), &tokens),
        ReadCount(body, "max_completion_tokens", 1, std::numeric_limits<uint32_t>::max(), &tokens),
        ReadSampling(body, made->mutable_sampling()), ReadStops(body, made),
        ReadBool(body, "ignore_eos", &request->echo)}) {
    if (!status.ok()) return status;
  }
  made->set_ignore_eos(std::exchange(request->echo, false));
  if (const json* options = Find(body, "stream_options"); options != nullptr) {
    if (!options->is_object()) return Bad("stream_options", "is no object");
    if (absl::Status status = ReadBool(*options, "include_usage", &request->include_usage);
        !status.ok()) {
      return status;
    }
  }
  made->set_n(static_cast<uint32_t>(n));
  made->set_max_new_tokens(static_cast<uint32_t>(tokens));
  made->set_fits_context(true);
  made->set_report_writes(true);
  return absl::OkStatus();
}

absl::Status AskLogprobs(uint64_t alternatives, OpenAiRequest* request, v1::GenerateRequest* made) {
  request->logprobs = true;
  made->mutable_sampling()->set_report_logprobs(true);
  made->mutable_sampling()->set_logprobs(static_cast<uint32_t>(alternatives));
  return absl::OkStatus();
}

// The parts of a message. `ttl_s` becomes the longest that a breakpoint asks for.
absl::Status ReadParts(const json& content, const std::string& at, v1::ChatMessage* message,
                       bool* has_breakpoint, uint32_t* ttl_s) {
  if (content.is_string()) {
    message->add_parts()->set_text(content.get<std::string>());
    return absl::OkStatus();
  }
  if (!content.is_array()) return Bad(at, "is neither a string nor a list of parts");
  for (const json& part : content) {
    if (!part.is_object()) return Bad(at, "has a part that is no object");
    const std::string type = part.value("type", json("")).is_string()
                                 ? part.value("type", std::string())
                                 : std::string();
    const json* text = Find(part, "text");
    if (type != "text" || text == nullptr || !text->is_string()) {
      return Bad(at, absl::StrCat("a part of type \"", type,
                                  "\" is not supported by this server; text is"));
    }
    v1::ContentPart* made = message->add_parts();
    made->set_text(text->get<std::string>());
    const json* breakpoint = Find(part, "prompt_cache_breakpoint");
    if (breakpoint == nullptr || *breakpoint == false) continue;
    made->set_cache_breakpoint(true);
    *has_breakpoint = true;
    const json* ttl = breakpoint->is_object() ? Find(*breakpoint, "ttl") : nullptr;
    if (ttl == nullptr) continue;
    const absl::StatusOr<uint32_t> seconds = ParseCacheTtl(*ttl);
    if (!seconds.ok()) {
      return Bad(at, absl::StrCat("prompt_cache_breakpoint.", seconds.status().message()));
    }
    *ttl_s = std::max(*ttl_s, *seconds);
  }
  return absl::OkStatus();
}

absl::Status ReadMessage(const json& message, const std::string& at, v1::Chat* chat,
                         bool* has_breakpoint, uint32_t* ttl_s) {
  if (!message.is_object()) return Bad(at, "is no object");
  std::string role;
  if (absl::Status status = ReadText(message, "role", &role); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(at, ".", status.message()));
  }
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant") {
    return Bad(absl::StrCat(at, ".role"),
               absl::StrCat("\"", role, "\"; system, developer, user or assistant"));
  }
  if (Find(message, "tool_calls") != nullptr && !Find(message, "tool_calls")->empty()) {
    return Bad(absl::StrCat(at, ".tool_calls"), "is not supported by this server");
  }
  const json* content = Find(message, "content");
  if (content == nullptr) return Bad(absl::StrCat(at, ".content"), "is missing");
  v1::ChatMessage* made = chat->add_messages();
  made->set_role(role);
  return ReadParts(*content, absl::StrCat(at, ".content"), made, has_breakpoint, ttl_s);
}

// One of: a text, a list of texts, of token ids, of lists of token ids.
absl::Status AddPrompt(const json& prompt, const v1::GenerateRequest& common, bool adds_id_lists,
                       OpenAiRequest* request) {
  v1::GenerateRequest made = common;
  if (prompt.is_string()) {
    made.mutable_prompt()->set_text(prompt.get<std::string>());
    request->prompts.push_back(prompt.get<std::string>());
  } else if (adds_id_lists && prompt.is_array() && !prompt.empty()) {
    for (const json& id : prompt) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
        return Bad("prompt", "a list of token ids has something else in it");
      }
      made.mutable_prompt()->mutable_token_ids()->add_ids(id.get<uint32_t>());
    }
    request->prompts.emplace_back();
  } else {
    return Bad("prompt", "is no text, list of texts, of token ids, or of lists of these");
  }
  request->generations.push_back(std::move(made));
  return absl::OkStatus();
}

}  // namespace

std::string JsonText(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<json> ParseBody(const std::string& body) {
  bool is_too_deep = false;
  const auto look = [&](int depth, json::parse_event_t, json&) {
    is_too_deep = is_too_deep || depth > kMaxDepth;
    return !is_too_deep;
  };
  json parsed = json::parse(body, look, /*allow_exceptions=*/false);
  if (is_too_deep) return absl::InvalidArgumentError("the body is nested too deeply");
  if (!parsed.is_object()) return absl::InvalidArgumentError("the body is no JSON object");
  return parsed;
}

absl::StatusOr<uint32_t> ParseCacheTtl(const json& ttl, const char* name) {
  uint64_t seconds = 0;
  if (ttl.is_number_unsigned()) {
    seconds = ttl.get<uint64_t>();
  } else if (ttl.is_string()) {
    const std::string text = ttl.get<std::string>();
    const std::map<char, uint32_t> units = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    const auto unit = text.empty() ? units.end() : units.find(text.back());
    uint32_t count = 0;
    if (unit != units.end() && absl::SimpleAtoi(text.substr(0, text.size() - 1), &count)) {
      seconds = uint64_t{count} * unit->second;
    }
  }
  if (seconds == 0 || seconds > kMaxTtlS) {
    return Bad(name, absl::StrCat("is ", ttl.dump(), "; \"5m\", \"1h\" or a number of seconds, ",
                                  "at most a year"));
  }
  return static_cast<uint32_t>(seconds);
}

absl::StatusOr<OpenAiRequest> ParseChat(const json& body) {
  OpenAiRequest request;
  request.is_chat = true;
  v1::GenerateRequest made;
  bool has_breakpoint = false, logprobs = false;
  uint64_t alternatives = 0;
  absl::Status status = ReadCommon(body, kChatTokens, &request, &made);
  if (status.ok()) status = ReadCacheOptions(body, &has_breakpoint, &request, &made);
  if (status.ok()) status = ReadBool(body, "logprobs", &logprobs);
  if (status.ok()) status = ReadCount(body, "top_logprobs", 0, 20, &alternatives);
  if (status.ok() && logprobs) status = AskLogprobs(alternatives, &request, &made);
  if (!status.ok()) return status;
  const json* messages = Find(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return Bad("messages", "is missing, or no list");
  }
  v1::Chat* chat = made.mutable_prompt()->mutable_chat();
  chat->set_strict(true);
  for (size_t i = 0; i < messages->size(); ++i) {
    status = ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]"), chat, &has_breakpoint,
                         &request.ttl_s);
    if (!status.ok()) return status;
  }
  if (!has_breakpoint && chat->messages(0).role() == "system") {
    auto* parts = chat->mutable_messages(0)->mutable_parts();
    if (!parts->empty()) parts->rbegin()->set_cache_breakpoint(true);
  }
  made.set_ttl_s(request.ttl_s);
  request.generations.push_back(std::move(made));
  return request;
}

absl::StatusOr<OpenAiRequest> ParseCompletion(const json& body) {
  OpenAiRequest request;
  v1::GenerateRequest made;
  bool is_explicit = false;
  uint64_t alternatives = 0;
  absl::Status status = ReadCommon(body, kCompletionTokens, &request, &made);
  if (status.ok()) status = ReadCacheOptions(body, &is_explicit, &request, &made);
  if (status.ok()) status = ReadBool(body, "echo", &request.echo);
  if (status.ok()) status = ReadCount(body, "logprobs", 0, 20, &alternatives);
  if (status.ok() && Find(body, "logprobs") != nullptr) {
    status = AskLogprobs(alternatives, &request, &made);
  }
  if (request.echo && request.logprobs) {
    made.mutable_sampling()->set_prompt_logprobs(static_cast<uint32_t>(alternatives));
  }
  if (!status.ok()) return status;
  made.set_ttl_s(request.ttl_s);
  const json* prompt = Find(body, "prompt");
  if (prompt == nullptr) return Bad("prompt", "is missing");
  const bool is_list = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
  if (is_list && prompt->size() > kMaxPrompts) {
    return Bad("prompt", absl::StrCat(prompt->size(), " prompts; at most ", kMaxPrompts));
  }
  if (!is_list) status = AddPrompt(*prompt, made, true, &request);
  for (size_t i = 0; is_list && i < prompt->size() && status.ok(); ++i) {
    status = AddPrompt((*prompt)[i], made, true, &request);
  }
  if (!status.ok()) return status;
  return request;
}

}  // namespace hearth
