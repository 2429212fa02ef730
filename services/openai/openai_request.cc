#include "services/openai/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/error_reason.h"
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
// Defaults of max_tokens. 16 is the default of OpenAI's API for completions. 4,096 tokens are a
// long answer to a chat; a larger default would reserve more memory for each chat.
constexpr uint32_t kCompletionTokens = 16, kChatTokens = 4096;

// Reads the fields of a JSON object. Fields with a no-op value of the table (openai_fields.h) count
// as absent.
JsonFields FieldsOf(JsonValue object, FieldPlace place) {
  return JsonFields(object, CountsAsAbsent, place);
}

// Reads a string, or a list of at most `most` strings. Skips empty strings in the list.
absl::Status ReadTexts(std::optional<JsonValue> texts, size_t most,
                       const std::function<void(std::string)>& add) {
  if (!texts.has_value()) return absl::OkStatus();
  const auto read = [&](JsonValue text) {
    if (!text.is_string()) return text.Bad("a string, or a list of strings");
    const absl::string_view bytes = *text.Text();
    if (bytes.empty() || bytes.size() > kMaxStopStringBytes) {
      return text.Bad(absl::StrCat("a string of 1 to ", kMaxStopStringBytes, " bytes"));
    }
    add(std::string(bytes));
    return absl::OkStatus();
  };
  if (!texts->is_list()) return read(*texts);
  if (texts->size() > most) {
    return texts->Refuse(absl::StrCat("must have at most ", most, " strings; got ", texts->size()));
  }
  for (const JsonValue text : texts->elements()) {
    if (text.Is("")) continue;
    if (absl::Status status = read(text); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadSeconds(std::optional<JsonValue> text, uint32_t* seconds) {
  if (!text.has_value()) return absl::OkStatus();
  const absl::StatusOr<uint32_t> read = ParseCacheTtl(*text);
  if (read.ok()) *seconds = *read;
  return read.status();
}

absl::Status ReadCacheOptions(JsonFields* fields, bool* is_explicit, OpenAiRequest* request) {
  fields->Text("prompt_cache_key", &request->cache_key, kMaxCacheKeyBytes);
  bool uses_cache = true;
  fields->Bool("cache_prompt", &uses_cache);
  if (!uses_cache) request->common.set_cache(v1::CACHE_MODE_OFF);
  const std::optional<JsonValue> options = fields->Find("prompt_cache_options");
  if (!options.has_value()) return fields->status();
  JsonFields inner = FieldsOf(*options, kInCacheOptions);
  if (const auto mode = inner.Find("mode"); mode.has_value()) {
    *is_explicit = mode->Is("explicit");
    if (!*is_explicit && !mode->Is("implicit")) return mode->Bad("implicit or explicit");
  }
  inner.Bool("prewarm", &request->prewarm);
  if (request->prewarm && !uses_cache) {
    return inner.Find("prewarm")->Bad("false when cache_prompt is false");
  }
  uint32_t ttl_s = 0, keep_s = 0;
  inner.Add(ReadSeconds(inner.Find("ttl"), &ttl_s));
  inner.Add(ReadSeconds(inner.Find("keep"), &keep_s));
  request->common.set_ttl_s(ttl_s);
  request->common.set_keep_s(keep_s);
  if (const auto priority = inner.Find("priority"); priority.has_value()) {
    const absl::StatusOr<double> read = priority->Number(-kMaxPriority, kMaxPriority);
    if (!read.ok()) return read.status();
    if (std::floor(*read) != *read) return priority->Bad("a whole number");
    request->common.set_priority(static_cast<int32_t>(*read));
  }
  return inner.status();
}

// Reads a list of at most kMaxListedTokens token ids, which is the limit of the gRPC API.
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

// Reads llama.cpp's form of logit_bias: [[ID, BIAS], ...]. If BIAS is false, the token is never
// generated.
absl::Status ReadBiasPairs(JsonValue pairs, v1::SamplingParams* sampling) {
  if (pairs.size() > kMaxListedTokens) {
    return pairs.Refuse(
        absl::StrCat("must have at most ", kMaxListedTokens, " pairs; got ", pairs.size()));
  }
  for (const JsonValue pair : pairs.elements()) {
    if (!pair.is_list() || pair.size() != 2) return pair.Bad("a list of a token id and a bias");
    auto item = pair.elements().begin();
    const absl::StatusOr<uint64_t> id = (*item).Count(0, std::numeric_limits<uint32_t>::max());
    const JsonValue bias = *++item;
    if (!id.ok()) return id.status();
    if (bias.IsBool(false)) {
      sampling->add_bad_token_ids(static_cast<uint32_t>(*id));
      continue;
    }
    const absl::StatusOr<double> number = bias.Number(-kMaxBias, kMaxBias);
    if (!number.ok()) return number.status();
    (*sampling->mutable_logit_bias())[static_cast<uint32_t>(*id)] = static_cast<float>(*number);
  }
  return absl::OkStatus();
}

// Reads logit_bias. ParseBody has already limited the number of keys.
absl::Status ReadBiases(std::optional<JsonValue> biases, v1::SamplingParams* sampling) {
  static_assert(kMaxListedTokens == kMaxJsonKeys, "the limit of the gRPC API");
  if (!biases.has_value()) return absl::OkStatus();
  if (biases->is_list()) return ReadBiasPairs(*biases, sampling);
  if (!biases->is_object()) return biases->Bad("an object of token ids and numbers");
  for (const JsonValue field : biases->fields()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(field.name(), &id)) {
      return biases->Refuse(
          absl::StrCat("must have token ids as keys; got ", Quoted(field.name())));
    }
    const absl::StatusOr<double> bias = field.Number(-kMaxBias, kMaxBias);
    if (!bias.ok()) return bias.status();
    (*sampling->mutable_logit_bias())[id] = static_cast<float>(*bias);
  }
  return absl::OkStatus();
}

// Reads the repetition penalty, from repetition_penalty or llama.cpp's name repeat_penalty.
// Penalties always cover all tokens, so repeat_last_n must be -1.
void ReadRepetition(JsonFields* fields, v1::SamplingParams* sampling) {
  float penalty = 1, same = 1;
  const bool has_penalty = fields->Number("repetition_penalty", 0.1, 10, &penalty);
  if (fields->Number("repeat_penalty", 0.1, 10, &same)) {
    if (has_penalty && same != penalty) {
      return fields->Add(fields->Find("repeat_penalty")
                             ->Refuse(absl::StrCat("must equal repetition_penalty, which is ",
                                                   penalty, "; got ", same)));
    }
    penalty = same;
    sampling->set_repetition_penalty(penalty);
  }
  if (has_penalty) sampling->set_repetition_penalty(penalty);
  const bool is_on =
      penalty != 1 || sampling->presence_penalty() != 0 || sampling->frequency_penalty() != 0;
  const std::optional<JsonValue> range = fields->Find("repeat_last_n");
  if (range.has_value() && is_on)
    fields->Add(range->Bad("-1 if a penalty is set: penalties count all tokens"));
}

// Reads the sampling parameters. The server sets defaults for absent parameters later.
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
  ReadRepetition(fields, sampling);
  uint64_t count = 0;
  const std::optional<JsonValue> top_k = fields->Find("top_k");
  // vLLM's clients send -1 to turn top_k off
  const bool takes_all = top_k.has_value() && top_k->Number(-1, -1).ok();
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

// Reads a count that has two field names. If a request has both fields, their values must be equal.
void CountEither(const char* name, const char* other, uint64_t least, uint64_t most,
                 JsonFields* fields, uint64_t* to) {
  uint64_t also = 0;
  const bool has_name = fields->Count(name, least, most, to);
  if (!fields->Count(other, least, most, &also)) return;
  if (has_name && also != *to) {
    return fields->Add(fields->Find(other)->Refuse(
        absl::StrCat("must equal ", name, ", which is ", *to, "; got ", also)));
  }
  *to = also;
}

// Reads the fields that are common to chats and completions.
absl::Status ReadCommon(JsonFields* fields, uint32_t max_tokens, OpenAiRequest* request) {
  const uint64_t least_tokens = request->echo ? 0 : 1;  // with echo, max_tokens may be 0
  constexpr uint64_t kMaxUint = std::numeric_limits<uint32_t>::max();
  v1::GenerateRequest* made = &request->common;
  uint64_t n = 1, tokens = max_tokens, best = 0;
  bool ignore_eos = false;
  fields->Text("model", &request->model);
  fields->Bool("stream", &request->stream);
  CountEither("n", "n_cmpl", 1, kMaxAnswers, fields, &n);
  if (fields->Count("best_of", 0, kMaxUint, &best) && best != n) {
    return fields->Find("best_of")->Refuse(
        absl::StrCat("must equal n, which is ", n, "; got ", best));
  }
  CountEither("max_tokens", "n_predict", least_tokens, kMaxUint, fields, &tokens);
  fields->Count("max_completion_tokens", least_tokens, kMaxUint, &tokens);
  ReadSampling(fields, made->mutable_sampling());
  fields->Add(ReadTexts(fields->Find("stop"), kMaxStopStrings,
                        [&](std::string text) { made->add_stop(std::move(text)); }));
  const auto words = fields->Find("bad_words");
  if (words.has_value() && !words->is_list()) fields->Add(words->Bad("a list of words"));
  fields->Add(ReadTexts(words, kMaxListedTokens,
                        [&](std::string word) { request->bad_words.push_back(std::move(word)); }));
  fields->Bool("ignore_eos", &ignore_eos);
  if (const auto options = fields->Find("stream_options"); options.has_value()) {
    JsonFields inner = FieldsOf(*options, kInStreamOptions);
    inner.Bool("include_usage", &request->include_usage);
    fields->Add(inner.status());
  }
  made->set_ignore_eos(ignore_eos);
  made->set_n(static_cast<uint32_t>(n));
  request->only_echo = tokens == 0;
  if (request->only_echo) made->mutable_sampling()->clear_min_tokens();
  made->set_max_new_tokens(std::max(static_cast<uint32_t>(tokens), 1u));
  made->set_fits_context(true);
  made->set_report_writes(true);
  return fields->status();
}

void RequestLogprobs(uint64_t alternatives, OpenAiRequest* request) {
  request->logprobs = true;
  request->common.mutable_sampling()->set_report_logprobs(true);
  request->common.mutable_sampling()->set_logprobs(static_cast<uint32_t>(alternatives));
}

// Checks the size of a text of the prompt here, where the path in the body is known: the prompt's
// messages differ from the body's. The text was made from the value `source`.
absl::Status CheckSize(JsonValue source, size_t bytes) {
  if (bytes <= kMaxTextBytes) return absl::OkStatus();
  return source.Refuse(absl::StrCat("has ", bytes, " bytes; the limit is ", kMaxTextBytes));
}
absl::Status CheckSize(JsonValue text) { return CheckSize(text, text.Text()->size()); }

// ChatReader: reads the messages of a chat request.
struct ChatReader {
  absl::Status ReadMessages(std::optional<JsonValue> messages);
  absl::Status ReadMessage(JsonValue message);
  absl::Status ReadContent(JsonValue message, JsonValue role, v1::ChatMessage* made);
  absl::Status MakeResult(JsonValue message, v1::ChatMessage* made);
  // Moves `results` to the chat, in the order of their calls.
  void AddResults();
  absl::Status ReadPart(JsonValue part, v1::ChatMessage* made);
  absl::Status ReadBreakpoints(JsonValue object, FieldPlace place, v1::ContentPart* last);

  v1::Chat* const chat;
  UnknownFields* const unknown;
  bool has_breakpoint = false;
  uint32_t ttl_s = 0;  // seconds; the longest time to live of any breakpoint
  CallHistory history = {};
  // Messages of tools since the last other message, each with the number of its call.
  std::vector<std::pair<size_t, v1::ChatMessage>> results = {};
};

absl::Status ChatReader::ReadPart(JsonValue part, v1::ChatMessage* made) {
  if (!part.is_object()) return part.Bad("an object");
  if (absl::Status s = CheckOpenAiFields(part, kInPart, unknown); !s.ok()) return s;
  const std::optional<JsonValue> type = part.Find("type"), text = part.Find("text");
  if (!type.has_value() || !type->Is("text")) {
    return WithReason(part.Refuse(absl::StrCat(
                          "must be a part of type \"text\", the only supported type; got type ",
                          type.has_value() ? type->Quote() : "nothing")),
                      kUnsupportedParameter);
  }
  if (!text.has_value()) return part.Refuse("must have a text; got none");
  const absl::StatusOr<absl::string_view> said = text->Text();
  if (!said.ok()) return said.status();
  if (absl::Status status = CheckSize(*text); !status.ok()) return status;
  v1::ContentPart* out = made->add_parts();
  out->set_text(std::string(*said));
  return ReadBreakpoints(part, kInPart, out);
}

// Reads the cache breakpoint of a content part, or of a message whose last part is `last`. Accepts
// each field name that clients use for it.
absl::Status ChatReader::ReadBreakpoints(JsonValue object, FieldPlace place,
                                         v1::ContentPart* last) {
  for (const char* name : {"prompt_cache_breakpoint", "cache_breakpoint", "cache_control"}) {
    const std::optional<JsonValue> found = object.Find(name);
    if (!found.has_value() || CountsAsAbsent(place, name, *found)) continue;
    if (!found->is_object() && !found->IsBool(true)) return found->Bad("an object, true or false");
    const std::optional<JsonValue> type = found->Find("type");
    if (type.has_value() && !type->Is("ephemeral")) return type->Bad("\"ephemeral\"");
    last->set_cache_breakpoint(true);
    has_breakpoint = true;
    uint32_t seconds = 0;
    absl::Status status = ReadSeconds(found->Find("ttl"), &seconds);
    if (!status.ok()) return status;
    ttl_s = std::max(ttl_s, seconds);
  }
  return absl::OkStatus();
}

// Reads the parts of the content. Appends the text of the message's tool calls to the last part.
absl::Status ChatReader::ReadContent(JsonValue message, JsonValue role, v1::ChatMessage* made) {
  const std::optional<JsonValue> content = message.Find("content");
  const bool is_answer = role.Is("assistant");
  if (!content.has_value() && !is_answer) {
    return absl::InvalidArgumentError(absl::StrCat(message.Path(), ".content: is missing"));
  }
  if (content.has_value() && content->is_string()) {
    if (absl::Status status = CheckSize(*content); !status.ok()) return status;
    made->add_parts()->set_text(std::string(*content->Text()));
  } else if (content.has_value() && !content->is_list()) {
    return content->Bad("a string or a list of parts");
  } else if (content.has_value()) {
    for (const JsonValue part : content->elements()) {
      if (absl::Status status = ReadPart(part, made); !status.ok()) return status;
    }
  }
  const std::optional<JsonValue> calls = message.Find("tool_calls");
  if (!is_answer || !calls.has_value()) return absl::OkStatus();
  const std::string text = made->parts().empty() ? "" : made->parts().rbegin()->text();
  absl::StatusOr<std::string> with_calls = history.TextWithCalls(text, *calls);
  if (!with_calls.ok()) return with_calls.status();
  if (absl::Status s = CheckSize(message, with_calls->size()); !s.ok()) return s;
  if (made->parts().empty() && !with_calls->empty()) made->add_parts();
  if (!made->parts().empty()) made->mutable_parts()->rbegin()->set_text(*std::move(with_calls));
  return absl::OkStatus();
}

// Turns a tool message into a user message with one part, and adds it to `results`.
absl::Status ChatReader::MakeResult(JsonValue message, v1::ChatMessage* made) {
  std::string text;
  for (const v1::ContentPart& part : made->parts()) text += part.text();
  size_t order = 0;
  absl::StatusOr<std::string> result = history.ResultText(message, text, &order);
  if (!result.ok()) return result.status();
  if (absl::Status s = CheckSize(message, result->size()); !s.ok()) return s;
  made->clear_parts();
  made->add_parts()->set_text(*std::move(result));
  results.emplace_back(order, std::move(*made));
  return absl::OkStatus();
}

void ChatReader::AddResults() {
  std::stable_sort(results.begin(), results.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  for (auto& [order, message] : results) *chat->add_messages() = std::move(message);
  results.clear();
}

absl::Status ChatReader::ReadMessage(JsonValue message) {
  if (!message.is_object()) return message.Bad("an object");
  constexpr char kRoles[] = "system, developer, user, assistant or tool";
  const std::optional<JsonValue> role = message.Find("role");
  if (!role.has_value()) return message.Refuse(absl::StrCat("must have a role: ", kRoles));
  const bool is_system = role->Is("system") || role->Is("developer"), is_result = role->Is("tool");
  if (!is_system && !is_result && !role->Is("user") && !role->Is("assistant")) {
    return role->Bad(kRoles);
  }
  if (absl::Status s = CheckOpenAiFields(message, kInMessage, unknown); !s.ok()) return s;
  v1::ChatMessage made;
  made.set_role(is_system ? "system" : is_result ? "user" : std::string(*role->Text()));
  if (absl::Status s = ReadContent(message, *role, &made); !s.ok()) return s;
  bool is_kept = std::any_of(made.parts().begin(), made.parts().end(),
                             [](const auto& part) { return part.cache_breakpoint(); });
  if (is_result) {
    if (absl::Status s = MakeResult(message, &made); !s.ok()) return s;
  } else {
    AddResults();
    *chat->add_messages() = std::move(made);
  }
  v1::ChatMessage* const added =
      is_result ? &results.back().second : &*chat->mutable_messages()->rbegin();
  if (added->parts().empty()) return absl::OkStatus();
  v1::ContentPart* const last = &*added->mutable_parts()->rbegin();
  if (is_result) last->set_cache_breakpoint(is_kept);
  return ReadBreakpoints(message, kInMessage, last);
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
  AddResults();
  v1::ChatMessage* system = nullptr;  // the last message of the system text
  for (v1::ChatMessage& message : *chat->mutable_messages()) {
    if (has_breakpoint || message.role() != "system") break;
    system = &message;
  }
  if (system == nullptr || system->parts().empty()) return absl::OkStatus();
  system->mutable_parts()->rbegin()->set_cache_breakpoint(true);
  return absl::OkStatus();
}

// PromptReader: reads the prompts of a completion request, or the prompt of a /tokenize request.
struct PromptReader {
  absl::Status ReadTruncation(JsonFields* fields, uint64_t max_tokens);
  absl::Status ReadAll(JsonValue body, OpenAiRequest* request) const;
  absl::Status AddPrompt(JsonValue prompt, OpenAiRequest* request) const;

  const uint32_t context_tokens;
  bool omits_bos = false;                    // do not prepend <bos>; text prompts only
  std::optional<JsonValue> truncation = {};  // value of the field truncate_prompt_tokens
  uint64_t kept_tokens = UINT64_MAX;         // number of tokens that truncation keeps
  bool keeps_first = false;
};

// Reads truncate_prompt_tokens, as in vLLM. A prompt of token ids is cut to its last N tokens, or
// to its first N if `truncation_side` is "right". -1 stands for the context length minus
// max_tokens.
absl::Status PromptReader::ReadTruncation(JsonFields* fields, uint64_t max_tokens) {
  truncation = fields->Find("truncate_prompt_tokens");
  if (const auto side = fields->Find("truncation_side"); side.has_value()) {
    keeps_first = side->Is("right");
    if (!keeps_first && !side->Is("left")) return side->Bad("left or right");
  }
  if (!truncation.has_value()) return fields->status();
  if (truncation->IsNumber(-1)) {
    if (max_tokens >= context_tokens) {
      return truncation->Refuse(absl::StrCat("-1 needs max_tokens below the context of ",
                                             context_tokens, " tokens; got ", max_tokens));
    }
    kept_tokens = context_tokens - max_tokens;
    return absl::OkStatus();
  }
  const absl::StatusOr<uint64_t> count = truncation->Count(1, context_tokens);
  if (count.ok()) kept_tokens = *count;
  return count.status();
}

// Adds a prompt, given as a text or as a list of token ids.
absl::Status PromptReader::AddPrompt(JsonValue prompt, OpenAiRequest* request) const {
  if (truncation.has_value() && !prompt.is_list()) {
    return truncation->Refuse("needs a prompt of token ids");
  }
  v1::PromptInput made;
  if (prompt.is_string()) {
    made.set_text(std::string(*prompt.Text()));
    made.set_omit_bos(omits_bos);
  } else if (prompt.is_list() && prompt.size() > 0) {
    const size_t kept = std::min<uint64_t>(prompt.size(), kept_tokens);
    if (kept > context_tokens) return PromptTooLong(prompt.Path(), context_tokens, kept);
    const absl::StatusOr<std::vector<uint32_t>> ids =
        prompt.Ids(kAllIds, keeps_first ? 0 : prompt.size() - kept, kept);
    if (!ids.ok()) return ids.status();
    made.mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  } else {
    return prompt.Bad("a text, a list of texts, of token ids, or of lists of these");
  }
  request->prompts.push_back(std::move(made));
  return absl::OkStatus();
}

absl::Status PromptReader::ReadAll(JsonValue body, OpenAiRequest* request) const {
  const std::optional<JsonValue> prompt = body.Find("prompt");
  if (!prompt.has_value()) return absl::InvalidArgumentError("prompt: is missing");
  const bool is_one =
      !prompt->is_list() || prompt->size() == 0 || (*prompt->elements().begin()).is_number();
  if (is_one) return AddPrompt(*prompt, request);
  if (prompt->size() > kMaxPrompts) {
    return prompt->Refuse(
        absl::StrCat("must have at most ", kMaxPrompts, " prompts; got ", prompt->size()));
  }
  for (const JsonValue one : prompt->elements()) {
    if (absl::Status status = AddPrompt(one, request); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t OpenAiRequest::bytes() const {
  uint64_t sum = common.SpaceUsedLong();
  for (const v1::PromptInput& prompt : prompts) sum += prompt.SpaceUsedLong();
  for (const auto* texts : {&bad_words, &answer.calls.names}) {
    for (const std::string& text : *texts) sum += sizeof(text) + text.capacity();
  }
  for (const SchemaPaths* paths : {&answer.paths, &answer.strict_paths}) {
    for (const auto& [place, path] : *paths) {
      sum += sizeof(paths->front()) + place.capacity() + path.capacity();
    }
  }
  if (answer.strict.has_value()) sum += answer.strict->SpaceUsedLong();
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

namespace {

// Reads the tools and messages of a chat as the request's prompt. If `keeps_system` is true, the
// end of the tools is a breakpoint; if the chat has no other breakpoint, the end of the system text
// is one, too.
absl::Status AddChat(JsonFields* fields, const std::vector<Tool>& tools, bool keeps_system,
                     OpenAiRequest* request) {
  bool opens_answer = true, continues = false;
  fields->Bool("add_generation_prompt", &opens_answer);
  fields->Bool("continue_final_message", &continues);
  if (!fields->status().ok()) return fields->status();
  v1::PromptInput prompt;
  v1::Chat* const chat = prompt.mutable_chat();
  if (!tools.empty()) {
    v1::ChatMessage* const first = chat->add_messages();
    first->set_role("system");
    v1::ContentPart* const part = first->add_parts();
    part->set_text(ToolsText(tools));
    const std::optional<JsonValue> listed = fields->Find("tools");
    if (listed.has_value()) {
      if (absl::Status s = CheckSize(*listed, part->text().size()); !s.ok()) return s;
    }
    part->set_cache_breakpoint(keeps_system);
  }
  ChatReader reader{chat, &request->unknown, !keeps_system, request->common.ttl_s()};
  absl::Status status = reader.ReadMessages(fields->Find("messages"));
  if (!status.ok()) return status;
  const bool ends_in_answer = chat->messages().rbegin()->role() == "assistant";
  if (!opens_answer && !ends_in_answer) {
    return fields->Find("add_generation_prompt")
        ->Bad("true, unless the last message is the assistant's");
  }
  if (continues && !ends_in_answer) {
    return fields->Find("continue_final_message")
        ->Bad("false, unless the last message is the assistant's");
  }
  chat->set_omit_generation_prompt(!opens_answer && !continues);
  chat->set_continue_final_message(continues);
  request->common.set_ttl_s(reader.ttl_s);
  request->earlier_calls = reader.history.calls();
  request->prompts.push_back(std::move(prompt));
  return absl::OkStatus();
}

// Stores the rules of the answer, and moves their grammar to the request.
absl::Status Constrain(absl::StatusOr<AnswerRules> rules, OpenAiRequest* request) {
  if (!rules.ok()) return rules.status();
  request->answer = *std::move(rules);
  std::optional<v1::Grammar> grammar = std::exchange(request->answer.grammar, std::nullopt);
  if (grammar.has_value()) *request->common.mutable_grammar() = *std::move(grammar);
  return absl::OkStatus();
}

// Reads the messages, tools and tool choice of a chat, and the form of its answer.
absl::Status AddToolChat(JsonFields* fields, bool keeps_system, const JsonLimits& limits,
                         OpenAiRequest* request) {
  const absl::StatusOr<std::vector<Tool>> tools =
      ReadTools(fields->Find("tools"), &request->unknown);
  if (!tools.ok()) return tools.status();
  const absl::StatusOr<ToolChoice> choice = ReadToolChoice(fields->Find("tool_choice"), *tools);
  if (!choice.ok()) return choice.status();
  const absl::StatusOr<AnswerForm> form = ReadAnswerForm(fields, limits);
  if (!form.ok()) return form.status();
  bool parallel = true;
  fields->Bool("parallel_tool_calls", &parallel);
  if (!fields->status().ok()) return fields->status();
  const absl::Status status = Constrain(RulesOf(*tools, *choice, parallel, *form), request);
  return status.ok() ? AddChat(fields, *tools, keeps_system, request) : status;
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseChat(JsonValue body, const JsonLimits& limits) {
  OpenAiRequest request;
  request.is_chat = true;
  bool is_explicit = false, logprobs = false;
  uint64_t alternatives = 0;
  JsonFields fields = FieldsOf(body, kInChat);
  fields.Add(CheckOpenAiFields(body, kInChat, &request.unknown));
  fields.Add(ReadCommon(&fields, kChatTokens, &request));
  fields.Add(ReadCacheOptions(&fields, &is_explicit, &request));
  fields.Bool("logprobs", &logprobs);
  if (fields.Count("top_logprobs", 0, kMaxTopLogprobs, &alternatives) && !logprobs) {
    return fields.Find("top_logprobs")->Refuse("needs \"logprobs\": true");
  }
  if (!fields.status().ok()) return fields.status();
  if (logprobs) RequestLogprobs(alternatives, &request);
  if (absl::Status s = AddToolChat(&fields, !is_explicit, limits, &request); !s.ok()) return s;
  return request;
}

absl::StatusOr<OpenAiRequest> ParseCompletion(JsonValue body, uint32_t context_tokens,
                                              const JsonLimits& limits) {
  OpenAiRequest request;
  bool is_explicit = false;
  uint64_t alternatives = 0;
  JsonFields fields = FieldsOf(body, kInCompletion);
  fields.Add(CheckOpenAiFields(body, kInCompletion, &request.unknown));
  fields.Bool("echo", &request.echo);
  fields.Add(ReadCommon(&fields, kCompletionTokens, &request));
  fields.Add(ReadCacheOptions(&fields, &is_explicit, &request));
  if (fields.Count("logprobs", 0, kMaxTopLogprobs, &alternatives)) {
    RequestLogprobs(alternatives, &request);
  }
  if (!fields.status().ok()) return fields.status();
  if (request.echo && request.logprobs) {
    request.common.mutable_sampling()->set_prompt_logprobs(static_cast<uint32_t>(alternatives));
  }
  PromptReader reader{context_tokens};
  bool adds_special = true;
  fields.Bool("add_special_tokens", &adds_special);
  reader.omits_bos = !adds_special;
  fields.Add(reader.ReadTruncation(&fields, request.common.max_new_tokens()));
  if (!fields.status().ok()) return fields.status();
  if (absl::Status s = reader.ReadAll(body, &request); !s.ok()) return s;
  const absl::StatusOr<AnswerForm> form = ReadAnswerForm(&fields, limits);
  if (!form.ok()) return form.status();
  const absl::Status status = Constrain(RulesOf({}, {}, /*parallel=*/true, *form), &request);
  if (!status.ok()) return status;
  return request;
}

absl::StatusOr<OpenAiRequest> ParseTokenize(JsonValue body, uint32_t context_tokens) {
  OpenAiRequest request;
  JsonFields fields = FieldsOf(body, kInTokenize);
  fields.Add(CheckOpenAiFields(body, kInTokenize, &request.unknown));
  fields.Text("model", &request.model);
  bool adds_special = true;
  const bool says_special = fields.Bool("add_special_tokens", &adds_special);
  if (!fields.status().ok()) return fields.status();
  request.is_chat = fields.Find("messages").has_value();
  if (!request.is_chat) {
    PromptReader reader{context_tokens};
    reader.omits_bos = !adds_special;
    absl::Status status = reader.ReadAll(body, &request);
    if (status.ok() && request.prompts.size() != 1) {
      status = absl::InvalidArgumentError(
          absl::StrCat("prompt: must be one text; got ", request.prompts.size()));
    }
    if (!status.ok()) return status;
    return request;
  }
  if (const auto prompt = body.Find("prompt"); prompt.has_value()) {
    return prompt->Refuse("must be absent if messages are given");
  }
  if (says_special && adds_special) {
    return fields.Find("add_special_tokens")->Bad("false: the template adds <bos>");
  }
  const absl::StatusOr<std::vector<Tool>> tools = ReadTools(fields.Find("tools"), &request.unknown);
  if (!tools.ok()) return tools.status();
  if (absl::Status s = AddChat(&fields, *tools, /*keeps_system=*/true, &request); !s.ok()) return s;
  return request;
}

}  // namespace hearth
