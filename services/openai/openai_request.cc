#include "services/openai/openai_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/error_reason.h"
#include "services/openai/chat_reader.h"
#include "services/serving/json_value.h"
#include "worker/text/logit_rules.h"
#include "worker/text/prompt.h"
#include "worker/text/sampler.h"
#include "worker/text/text_stream.h"

namespace hearth {
namespace {

constexpr uint32_t kMaxTtlS = 366 * 24 * 3600;
constexpr uint32_t kCompletionTokens = 16;  // as in OpenAI's API

void RequestLogprobs(uint64_t alternatives, OpenAiRequest* request) {
  request->logprobs = true;
  request->common.mutable_sampling()->set_report_logprobs(true);
  request->common.mutable_sampling()->set_logprobs(static_cast<uint32_t>(alternatives));
}

// PromptReader: reads the prompts of a completion request, or the prompt of a /tokenize request.
struct PromptReader {
  absl::Status ReadTruncation(JsonFields* fields, const OpenAiRequest& request);
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
absl::Status PromptReader::ReadTruncation(JsonFields* fields, const OpenAiRequest& request) {
  const uint64_t max_tokens = request.common.max_new_tokens();
  truncation = fields->Find("truncate_prompt_tokens");
  if (const auto side = fields->Find("truncation_side"); side.has_value()) {
    keeps_first = side->Is("right");
    if (!keeps_first && !side->Is("left")) return side->Bad("left or right");
  }
  if (!truncation.has_value()) return fields->status();
  if (truncation->IsNumber(-1)) {
    if (max_tokens >= context_tokens) {
      return truncation->Refuse(absl::StrCat("-1 needs ", request.sent.max_new_tokens,
                                             " below the context of ", context_tokens,
                                             " tokens; got ", max_tokens));
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
  uint64_t sum = common.SpaceUsedLong() + repeated.capacity();
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

// Reads the tools and messages of a chat as the request's prompt. `keeps_system`, `own`: see
// ChatReader.
absl::Status AddChat(JsonFields* fields, const std::vector<Tool>& tools, bool keeps_system,
                     const TemplateTools* own, OpenAiRequest* request) {
  bool opens_answer = true, continues = false;
  fields->Bool("add_generation_prompt", &opens_answer);
  fields->Bool("continue_final_message", &continues);
  if (!fields->status().ok()) return fields->status();
  v1::PromptInput prompt;
  v1::Chat* const chat = prompt.mutable_chat();
  ChatReader reader(chat, &request->unknown, keeps_system, request->common.ttl_s(), own);
  if (absl::Status s = reader.AddTools(tools, fields->Find("tools")); !s.ok()) return s;
  if (absl::Status s = reader.ReadMessages(fields->Find("messages")); !s.ok()) return s;
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
  chat->set_answer_prefix(request->answer.answer_prefix);
  request->common.set_ttl_s(reader.ttl_s());
  request->earlier_calls = reader.calls();
  request->prompts.push_back(std::move(prompt));
  return absl::OkStatus();
}

// Reads the messages, tools and tool choice of a chat, and the form of its answer.
absl::Status AddToolChat(JsonFields* fields, bool keeps_system, const ParseTerms& terms,
                         OpenAiRequest* request) {
  const absl::StatusOr<std::vector<Tool>> tools =
      ReadTools(fields->Find("tools"), &request->unknown);
  if (!tools.ok()) return tools.status();
  const absl::StatusOr<ToolChoice> choice = ReadToolChoice(fields->Find("tool_choice"), *tools);
  if (!choice.ok()) return choice.status();
  const absl::StatusOr<AnswerForm> form = ReadAnswerForm(fields, terms);
  if (!form.ok()) return form.status();
  bool parallel = true;
  fields->Bool("parallel_tool_calls", &parallel);
  if (!fields->status().ok()) return fields->status();
  const TemplateTools* const own = terms.own_template;
  const absl::Status status = Constrain(RulesOf(*tools, *choice, parallel, *form, own), request);
  return status.ok() ? AddChat(fields, *tools, keeps_system, own, request) : status;
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseChat(JsonValue body, const ParseTerms& terms) {
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
  if (absl::Status s = AddToolChat(&fields, !is_explicit, terms, &request); !s.ok()) return s;
  return request;
}

absl::StatusOr<OpenAiRequest> ParseCompletion(JsonValue body, uint32_t context_tokens,
                                              const ParseTerms& terms) {
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
  fields.Add(reader.ReadTruncation(&fields, request));
  if (!fields.status().ok()) return fields.status();
  if (absl::Status s = reader.ReadAll(body, &request); !s.ok()) return s;
  if (request.explain && request.prompts.size() > 1) {
    return fields.Find("hearth_explain")
        ->Refuse(absl::StrCat("needs one prompt; got ", request.prompts.size()));
  }
  const absl::StatusOr<AnswerForm> form = ReadAnswerForm(&fields, terms);
  if (!form.ok()) return form.status();
  const absl::Status status = Constrain(RulesOf({}, {}, /*parallel=*/true, *form), &request);
  if (!status.ok()) return status;
  return request;
}

absl::StatusOr<OpenAiRequest> ParseTokenize(JsonValue body, uint32_t context_tokens,
                                            const ParseTerms& terms) {
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
  const absl::Status status =
      AddChat(&fields, *tools, /*keeps_system=*/true, terms.own_template, &request);
  if (!status.ok()) return status;
  return request;
}

}  // namespace hearth
