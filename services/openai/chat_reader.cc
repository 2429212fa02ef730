#include "services/openai/chat_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/error_reason.h"
#include "proto/kv_layout.h"
#include "services/serving/json_value.h"
#include "worker/text/logit_rules.h"
#include "worker/text/prompt.h"
#include "worker/text/sampler.h"
#include "worker/text/text_stream.h"

namespace hearth {
namespace {

constexpr uint32_t kMaxAnswers = 16;
constexpr double kMaxBias = 100;

absl::Status ReadSeconds(std::optional<JsonValue> text, uint32_t* seconds) {
  if (!text.has_value()) return absl::OkStatus();
  const absl::StatusOr<uint32_t> read = ParseCacheTtl(*text);
  if (read.ok()) *seconds = *read;
  return read.status();
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
    if (!pair.is_list() || pair.size() != 2) return pair.Bad("a pair [token id, bias]");
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

// Returns the error of the field `value`, which is `got` and must equal the field `name`.
absl::Status MustEqual(JsonValue value, const char* name, uint64_t wanted, uint64_t got) {
  return value.Refuse(absl::StrCat("must equal ", name, ", which is ", wanted, "; got ", got));
}

// Reads a count that has two field names. If a request has both fields, their values must be equal.
// Returns the name of the field that the request has; `name` if it has both, or none.
const char* CountEither(const char* name, const char* other, uint64_t least, uint64_t most,
                        JsonFields* fields, uint64_t* to) {
  uint64_t also = 0;
  const bool has_name = fields->Count(name, least, most, to);
  if (!fields->Count(other, least, most, &also)) return name;
  if (has_name && also != *to) {
    fields->Add(MustEqual(*fields->Find(other), name, *to, also));
  }
  *to = also;
  return has_name ? name : other;
}

}  // namespace

JsonFields FieldsOf(JsonValue object, FieldPlace place) {
  return JsonFields(object, CountsAsAbsent, place);
}

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

absl::Status ReadCacheOptions(JsonFields* fields, bool* is_explicit, OpenAiRequest* request) {
  fields->Text("prompt_cache_key", &request->cache_key, kMaxCacheKeyBytes);
  fields->Bool("hearth_explain", &request->explain);
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

void SetAnswers(uint64_t n, uint64_t max_tokens, OpenAiRequest* request) {
  v1::GenerateRequest* const made = &request->common;
  made->set_n(static_cast<uint32_t>(n));
  request->only_echo = max_tokens == 0;
  if (request->only_echo) made->mutable_sampling()->clear_min_tokens();
  made->set_max_new_tokens(std::max(static_cast<uint32_t>(max_tokens), 1u));
  made->set_fits_context(true);
  made->set_report_writes(true);
}

absl::Status ReadCommon(JsonFields* fields, uint32_t max_tokens, OpenAiRequest* request) {
  const uint64_t least_tokens = request->echo ? 0 : 1;  // with echo, max_tokens may be 0
  constexpr uint64_t kMaxUint = std::numeric_limits<uint32_t>::max();
  v1::GenerateRequest* made = &request->common;
  uint64_t n = 1, tokens = max_tokens, best = 0;
  bool ignore_eos = false;
  fields->Text("model", &request->model);
  fields->Bool("stream", &request->stream);
  SentNames& sent = request->sent;
  sent.n = CountEither("n", "n_cmpl", 1, kMaxAnswers, fields, &n);
  if (fields->Count("best_of", 0, kMaxUint, &best) && best != n) {
    return MustEqual(*fields->Find("best_of"), sent.n, n, best);
  }
  sent.max_new_tokens =
      CountEither("max_tokens", "n_predict", least_tokens, kMaxUint, fields, &tokens);
  if (fields->Count("max_completion_tokens", least_tokens, kMaxUint, &tokens)) {
    sent.max_new_tokens = "max_completion_tokens";
  }
  ReadSampling(fields, made->mutable_sampling());
  fields->Add(ReadTexts(fields->Find("stop"), kMaxStopStrings,
                        [&](std::string text) { made->add_stop(std::move(text)); }));
  const auto words = fields->Find("bad_words");
  if (words.has_value() && !words->is_list()) fields->Add(words->Bad("a list of words"));
  fields->Add(ReadTexts(words, kMaxListedTokens,
                        [&](std::string word) { request->bad_words.push_back(std::move(word)); }));
  if (!fields->Find("bad_token_ids").has_value()) {
    sent.bad_token_ids = request->bad_words.empty() ? "logit_bias" : "bad_words";
  }
  fields->Bool("ignore_eos", &ignore_eos);
  if (const auto options = fields->Find("stream_options"); options.has_value()) {
    JsonFields inner = FieldsOf(*options, kInStreamOptions);
    inner.Bool("include_usage", &request->include_usage);
    fields->Add(inner.status());
  }
  made->set_ignore_eos(ignore_eos);
  SetAnswers(n, tokens, request);
  return fields->status();
}

absl::Status Constrain(absl::StatusOr<AnswerRules> rules, OpenAiRequest* request) {
  if (!rules.ok()) return rules.status();
  request->answer = *std::move(rules);
  std::optional<v1::Grammar> grammar = std::exchange(request->answer.grammar, std::nullopt);
  if (grammar.has_value()) *request->common.mutable_grammar() = *std::move(grammar);
  return absl::OkStatus();
}

absl::Status CheckSize(JsonValue source, size_t bytes) {
  if (bytes <= kMaxTextBytes) return absl::OkStatus();
  return source.Refuse(absl::StrCat("has ", bytes, " bytes; the limit is ", kMaxTextBytes));
}
absl::Status CheckSize(JsonValue text) { return CheckSize(text, text.Text()->size()); }

absl::Status ChatReader::AddTools(const std::vector<Tool>& tools, std::optional<JsonValue> source,
                                  const std::vector<size_t>& kept) {
  if (tools.empty()) return absl::OkStatus();
  if (!in_text_) {
    for (const Tool& tool : tools) {
      std::string* const text = chat_->add_tools();
      *text = "{\"type\": \"function\", \"function\": ";
      AppendTool(tool, text);
      text->push_back('}');
    }
    return absl::OkStatus();
  }
  std::vector<size_t> ends;
  const std::string text = ToolsText(tools, &ends);
  if (source.has_value()) {
    if (absl::Status status = CheckSize(*source, text.size()); !status.ok()) return status;
  }
  v1::ChatMessage* const first = chat_->add_messages();
  first->set_role("system");
  size_t begin = 0;
  const auto add_part = [&](size_t end, bool is_kept) {
    v1::ContentPart* const part = first->add_parts();
    part->set_text(text.substr(begin, end - begin));
    part->set_cache_breakpoint(is_kept);
    begin = end;
  };
  for (const size_t tool : kept) {
    if (tool + 1 < tools.size()) add_part(ends[tool], /*is_kept=*/true);
  }
  add_part(text.size(), keeps_system_);
  return absl::OkStatus();
}

absl::Status ChatReader::ReadText(JsonValue text, v1::ChatMessage* made) {
  const absl::StatusOr<absl::string_view> said = text.Text();
  if (!said.ok()) return said.status();
  if (absl::Status status = CheckSize(text); !status.ok()) return status;
  made->add_parts()->set_text(std::string(*said));
  return absl::OkStatus();
}

absl::Status ChatReader::ReadPart(JsonValue part, FieldPlace place,
                                  absl::Span<const char* const> types, v1::ChatMessage* made) {
  if (!part.is_object()) return part.Bad("an object");
  if (absl::Status s = CheckOpenAiFields(part, place, unknown_); !s.ok()) return s;
  const std::optional<JsonValue> type = part.Find("type"), text = part.Find("text");
  const bool is_served = type.has_value() && std::any_of(types.begin(), types.end(),
                                                         [&](auto one) { return type->Is(one); });
  if (!is_served) {
    return WithReason(
        part.Refuse(absl::StrCat("must be a part of type \"", absl::StrJoin(types, "\" or \""),
                                 types.size() == 1 ? "\", the only supported type; got type "
                                                   : "\", the supported types; got type ",
                                 type.has_value() ? type->Quote() : "nothing")),
        kUnsupportedParameter);
  }
  if (!text.has_value()) return part.Refuse("must have a text; got none");
  if (absl::Status status = ReadText(*text, made); !status.ok()) return status;
  return ReadBreakpoints(part, place, &*made->mutable_parts()->rbegin());
}

void ChatReader::SetBreakpoint(uint32_t seconds, v1::ContentPart* part) {
  part->set_cache_breakpoint(true);
  has_breakpoint_ = true;
  ttl_s_ = std::max(ttl_s_, seconds);
}

absl::Status ChatReader::ReadBreakpoints(JsonValue object, FieldPlace place,
                                         v1::ContentPart* last) {
  for (const char* name : {"prompt_cache_breakpoint", "cache_breakpoint", "cache_control"}) {
    const std::optional<JsonValue> found = object.Find(name);
    if (!found.has_value() || CountsAsAbsent(place, name, *found)) continue;
    if (!found->is_object() && !found->IsBool(true)) return found->Bad("an object, true or false");
    const std::optional<JsonValue> type = found->Find("type");
    if (type.has_value() && !type->Is("ephemeral")) return type->Bad("\"ephemeral\"");
    if (last == nullptr) return found->Refuse("needs a message with content; got none");
    uint32_t seconds = 0;
    absl::Status status = ReadSeconds(found->Find("ttl"), &seconds);
    if (!status.ok()) return status;
    SetBreakpoint(seconds, last);
  }
  return absl::OkStatus();
}

absl::Status ChatReader::AddCalls(JsonValue source, const std::vector<PastCall>& calls,
                                  v1::ChatMessage* made) {
  if (!in_text_) {
    if (absl::Status status = history_.Add(calls); !status.ok()) return status;
    for (const PastCall& call : calls) {
      v1::ToolCall* const added = made->add_tool_calls();
      added->set_id(std::string(*call.id.Text()));
      added->set_name(std::string(*call.name.Text()));
      added->set_arguments(std::string(call.arguments));
    }
    if (made->parts().empty() && !calls.empty()) made->add_parts();
    return absl::OkStatus();
  }
  const std::string text = made->parts().empty() ? "" : made->parts().rbegin()->text();
  absl::StatusOr<std::string> with_calls = history_.TextWithCalls(text, calls);
  if (!with_calls.ok()) return with_calls.status();
  if (absl::Status s = CheckSize(source, with_calls->size()); !s.ok()) return s;
  if (made->parts().empty() && !with_calls->empty()) made->add_parts();
  if (!made->parts().empty()) made->mutable_parts()->rbegin()->set_text(*std::move(with_calls));
  return absl::OkStatus();
}

v1::ChatMessage* ChatReader::AddMessage(v1::ChatMessage made) {
  AddResults();
  for (v1::ContentPart& part : *made.mutable_parts()) {
    if (made.role() != "system" || !absl::StartsWith(part.text(), kBillingHeader)) continue;
    part.mutable_text()->erase(0, std::min(part.text().find('\n'), part.text().size() - 1) + 1);
  }
  v1::ChatMessage* const added = chat_->add_messages();
  *added = std::move(made);
  return added;
}

absl::StatusOr<v1::ChatMessage*> ChatReader::AddResult(JsonValue source, JsonValue id,
                                                       v1::ChatMessage made, bool failed) {
  std::string text;
  bool is_kept = false;
  for (const v1::ContentPart& part : made.parts()) {
    text += part.text();
    is_kept = is_kept || part.cache_breakpoint();
  }
  const absl::StatusOr<CallHistory::Call> call = history_.Find(id);
  if (!call.ok()) return call.status();
  if (in_text_) text = CallHistory::ResultText(*call, text, failed);
  if (absl::Status s = CheckSize(source, text.size()); !s.ok()) return s;
  made.set_role(in_text_ ? "user" : "tool");
  if (!in_text_) {
    made.set_tool_call_id(std::string(*id.Text()));
    made.set_name(call->name);
  }
  made.clear_parts();
  v1::ContentPart* const part = made.add_parts();
  part->set_text(std::move(text));
  part->set_cache_breakpoint(is_kept);
  results_.emplace_back(call->order, std::move(made));
  return &results_.back().second;
}

void ChatReader::AddResults() {
  std::stable_sort(results_.begin(), results_.end(),
                   [](const auto& one, const auto& other) { return one.first < other.first; });
  for (auto& [order, message] : results_) *chat_->add_messages() = std::move(message);
  results_.clear();
}

void ChatReader::Finish() {
  AddResults();
  chat_->set_strict(true);
  v1::ChatMessage* system = nullptr;  // the last message of the system text
  for (v1::ChatMessage& message : *chat_->mutable_messages()) {
    if (has_breakpoint_ || !keeps_system_ || message.role() != "system") break;
    system = &message;
  }
  if (system == nullptr || system->parts().empty()) return;
  system->mutable_parts()->rbegin()->set_cache_breakpoint(true);
}

absl::Status ChatReader::ReadContent(JsonValue message, bool is_answer, v1::ChatMessage* made) {
  const std::optional<JsonValue> content = message.Find("content");
  if (!content.has_value() && !is_answer) {
    return absl::InvalidArgumentError(absl::StrCat(message.Path(), ".content: is missing"));
  }
  if (content.has_value() && content->is_string()) {
    if (absl::Status status = ReadText(*content, made); !status.ok()) return status;
  } else if (content.has_value() && !content->is_list()) {
    return content->Bad(kContentForms);
  } else if (content.has_value()) {
    for (const JsonValue part : content->elements()) {
      if (absl::Status s = ReadPart(part, kInPart, {"text"}, made); !s.ok()) return s;
    }
  }
  const std::optional<JsonValue> calls = message.Find("tool_calls");
  if (!is_answer || !calls.has_value()) return absl::OkStatus();
  const absl::StatusOr<std::vector<PastCall>> read = ReadPastCalls(*calls);
  return read.ok() ? AddCalls(message, *read, made) : read.status();
}

// Refuses the fields of a message that only another role may have.
absl::Status CheckRoleFields(JsonValue message, JsonValue role) {
  constexpr std::pair<const char*, const char*> kOwners[] = {{"tool_calls", "assistant"},
                                                             {"tool_call_id", "tool"}};
  for (const auto& [name, owner] : kOwners) {
    const std::optional<JsonValue> value = message.Find(name);
    if (!value.has_value() || role.Is(owner) || CountsAsAbsent(kInMessage, name, *value)) continue;
    return value->Refuse(
        absl::StrCat("must be absent unless the role is ", owner, "; the role is ", role.Quote()));
  }
  return absl::OkStatus();
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
  if (absl::Status s = CheckOpenAiFields(message, kInMessage, unknown_); !s.ok()) return s;
  if (absl::Status s = CheckRoleFields(message, *role); !s.ok()) return s;
  v1::ChatMessage made;
  made.set_role(is_system ? "system" : std::string(*role->Text()));
  if (absl::Status s = ReadContent(message, role->Is("assistant"), &made); !s.ok()) return s;
  v1::ChatMessage* added = nullptr;
  if (is_result) {
    const absl::StatusOr<JsonValue> id = message.FindNeeded("tool_call_id");
    if (!id.ok()) return id.status();
    const absl::StatusOr<v1::ChatMessage*> result = AddResult(message, *id, std::move(made));
    if (!result.ok()) return result.status();
    added = *result;
  } else {
    added = AddMessage(std::move(made));
  }
  const bool is_empty = added->parts().empty();
  return ReadBreakpoints(message, kInMessage,
                         is_empty ? nullptr : &*added->mutable_parts()->rbegin());
}

absl::Status ChatReader::CheckMessages(std::optional<JsonValue> messages) {
  if (!messages.has_value()) return absl::InvalidArgumentError("messages: is missing");
  if (!messages->is_list() || messages->size() == 0) return messages->Bad("a list of messages");
  if (messages->size() <= kMaxChatMessages) return absl::OkStatus();
  return messages->Refuse(
      absl::StrCat("must have at most ", kMaxChatMessages, " messages; got ", messages->size()));
}

absl::Status ChatReader::ReadMessages(std::optional<JsonValue> messages) {
  if (absl::Status status = CheckMessages(messages); !status.ok()) return status;
  for (const JsonValue message : messages->elements()) {
    if (absl::Status status = ReadMessage(message); !status.ok()) return status;
  }
  Finish();
  return absl::OkStatus();
}

}  // namespace hearth
