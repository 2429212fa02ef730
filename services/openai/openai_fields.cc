#include "services/openai/openai_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/error_reason.h"
#include "proto/plain_name.h"

namespace hearth {
namespace {

constexpr uint16_t kAnswer = kInChat | kInCompletion;
constexpr uint16_t kEmpty = kFalse | kEmptyText | kEmptyList | kEmptyObject;

// Notes that several rows of the table share.
constexpr char kAsBreakpoint[] = "same as prompt_cache_breakpoint";
constexpr char kCallerNote[] = "for the caller; not used here";
constexpr char kNeedsBeams[] = "no effect without use_beam_search";
constexpr char kNeedsDry[] = "no effect without dry_multiplier";
constexpr char kNeedsGrammar[] = "no effect without grammar";
constexpr char kNeedsGuide[] = "does not change what a schema allows";
constexpr char kNeedsMirostat[] = "no effect without mirostat";
constexpr char kNoPart[] = "does not change the answer";
constexpr char kNoReasoning[] = "answers have no reasoning part";
constexpr char kNoReasoningInChat[] = "Gemma's chats have no reasoning part";
constexpr char kNoShift[] = "this server never shifts the context";
constexpr char kOfImages[] = "applies only to images";
constexpr char kOnlyTime[] = "a hint that changes only speed";
constexpr char kOnlyWhen[] = "changes only when the request runs";
constexpr char kPutInside[] = "put it into a message or a content part";
constexpr char kSchemaNote[] = "a schema, or its JSON text";
constexpr char kSendToChats[] = "send them to /v1/chat/completions";

// Columns: the members of OpenAiField. A field may be ignored only if it changes neither the tokens
// nor the content of a response.
constexpr OpenAiField kFields[] = {
    {"adaptive_decay", kAnswer, FieldUse::kIgnored, 0, "no effect without adaptive_target"},
    {"adaptive_target", kAnswer, FieldUse::kRefused, kMinusOne},
    {"add_generation_prompt", kInChat | kInTokenize, FieldUse::kServed, kTrue,
     "may be false only if the last message is the assistant's"},
    {"add_special", kInTokenize, FieldUse::kRefused, kTrue, "send add_special_tokens"},
    {"add_special_tokens", kInChat, FieldUse::kRefused, kFalse, "the template adds <bos>"},
    {"add_special_tokens", kInCompletion, FieldUse::kServed, kTrue, "false: without <bos>"},
    {"add_special_tokens", kInTokenize, FieldUse::kServed, 0,
     "false: without <bos>; not with messages"},
    {"allowed_token_ids", kAnswer, FieldUse::kRefused, kEmpty, "send logit_bias or bad_token_ids"},
    {"annotations", kInMessage, FieldUse::kIgnored, 0, "not part of the prompt"},
    {"audio", kAnswer | kInMessage, FieldUse::kRefused, kEmpty},
    {"audio_embeds", kInPart, FieldUse::kRefused, kEmpty},
    {"audio_url", kInPart, FieldUse::kRefused, kEmpty},
    {"backend_sampling", kAnswer, FieldUse::kIgnored, 0, "changes only the sampling device"},
    {"bad_token_ids", kAnswer, FieldUse::kServed, kEmptyList},
    {"bad_words", kAnswer, FieldUse::kServed, kEmptyList | kEmptyText | kEmptyTexts,
     "each word must be one token"},
    {"best_of", kAnswer, FieldUse::kServed, 0, "must equal n"},
    {"cache_breakpoint", kAnswer, FieldUse::kRefused, kFalse, kPutInside},
    {"cache_breakpoint", kInMessage | kInPart, FieldUse::kServed, kFalse, kAsBreakpoint},
    {"cache_control", kAnswer, FieldUse::kRefused, kEmpty, kPutInside},
    {"cache_control", kInMessage | kInPart, FieldUse::kServed, kFalse, kAsBreakpoint,
     kInCacheControl},
    {"cache_prompt", kAnswer, FieldUse::kServed, kTrue,
     "false: neither reads nor writes the cache"},
    {"cache_salt", kAnswer, FieldUse::kRefused, kEmptyText,
     "to separate callers, use --identities-file"},
    {"chat_format", kAnswer, FieldUse::kRefused, kEmpty},
    {"chat_parser", kAnswer, FieldUse::kRefused, kEmpty},
    {"chat_template", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty},
    {"chat_template_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty,
     "values null and false are ignored", kInTemplate},
    {"choice", kInStructured, FieldUse::kRefused, kEmpty, "send json with an enum"},
    {"content", kInTokenize, FieldUse::kRefused, kEmpty, "send prompt"},
    {"content", kInMessage, FieldUse::kServed, 0, "may be null in an assistant's message"},
    {"continue_final_message", kInChat | kInTokenize, FieldUse::kServed, kFalse,
     "the answer continues the last message"},
    {"continue_final_message", kInCompletion, FieldUse::kRefused, kFalse,
     "the answer always continues the prompt"},
    {"continuous_usage_stats", kInStreamOptions, FieldUse::kIgnored, 0,
     "the last event always has the usage"},
    {"description", kInFunction, FieldUse::kServed},
    {"disable_any_whitespace", kInStructured, FieldUse::kIgnored, 0,
     "white space is always canonical"},
    {"documents", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty},
    {"dry_allowed_length", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dry_base", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dry_multiplier", kAnswer, FieldUse::kRefused, kZero},
    {"dry_penalty_last_n", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dry_sequence_breakers", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dynatemp_exponent", kAnswer, FieldUse::kIgnored, 0, "no effect without dynatemp_range"},
    {"dynatemp_range", kAnswer, FieldUse::kRefused, kZero},
    {"early_stopping", kAnswer, FieldUse::kIgnored, 0, kNeedsBeams},
    {"ebnf", kAnswer, FieldUse::kRefused, kEmpty},
    {"ec_transfer_params", kAnswer, FieldUse::kRefused, kEmpty},
    {"echo", kInChat, FieldUse::kRefused, kFalse},
    {"echo", kInCompletion, FieldUse::kServed, kFalse, "with max_tokens 0: only the prompt"},
    {"enable_thinking", kInTemplate, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"file", kInPart, FieldUse::kRefused, kEmpty},
    {"frequency_penalty", kAnswer, FieldUse::kServed},
    {"function", kInTool, FieldUse::kServed},
    {"function_call", kAnswer, FieldUse::kRefused, kEmpty, "deprecated: send tool_choice", 0,
     "auto none"},
    {"function_call", kInMessage, FieldUse::kRefused, kEmpty, "deprecated: send tool_calls"},
    {"functions", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "deprecated: send tools"},
    {"generation_prompt", kAnswer, FieldUse::kRefused, kEmpty},
    {"grammar", kAnswer | kInStructured, FieldUse::kRefused, kEmpty},
    {"grammar_lazy", kAnswer, FieldUse::kIgnored, 0, kNeedsGrammar},
    {"grammar_triggers", kAnswer, FieldUse::kIgnored, 0, kNeedsGrammar},
    {"grammar_type", kAnswer, FieldUse::kIgnored, 0, kNeedsGrammar},
    {"guided_choice", kAnswer, FieldUse::kRefused, kEmpty},
    {"guided_decoding_backend", kAnswer, FieldUse::kIgnored, 0, kNeedsGuide},
    {"guided_grammar", kAnswer, FieldUse::kRefused, kEmpty},
    {"guided_json", kAnswer, FieldUse::kServed, kFalse | kEmptyText, kSchemaNote},
    {"guided_json_object", kAnswer, FieldUse::kRefused, kEmpty},
    {"guided_regex", kAnswer, FieldUse::kRefused, kEmpty},
    {"guided_whitespace_pattern", kAnswer, FieldUse::kIgnored, 0, kNeedsGuide},
    {"id_slot", kAnswer, FieldUse::kIgnored, 0, "changes only where the request runs"},
    {"ignore_eos", kAnswer, FieldUse::kServed, kFalse},
    {"image_embeds", kInPart, FieldUse::kRefused, kEmpty},
    {"image_url", kInPart, FieldUse::kRefused, kEmpty},
    {"include_obfuscation", kInStreamOptions, FieldUse::kIgnored, 0, "changes only event padding"},
    {"include_reasoning", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"include_stop_str_in_output", kAnswer, FieldUse::kRefused, kFalse},
    {"include_usage", kInStreamOptions, FieldUse::kServed, kFalse},
    {"input_audio", kInPart, FieldUse::kRefused, kEmpty},
    {"input_video", kInPart, FieldUse::kRefused, kEmpty},
    {"json", kInStructured, FieldUse::kServed, kEmptyText, kSchemaNote},
    {"json_object", kInStructured, FieldUse::kServed, kFalse, "any JSON object"},
    {"json_schema", kAnswer, FieldUse::kRefused, kFalse | kEmptyText,
     "send response_format.json_schema"},
    {"json_schema", kInResponseFormat, FieldUse::kServed, kFalse | kEmptyText},
    {"keep", kInCacheOptions, FieldUse::kServed},
    {"kv_transfer_params", kAnswer, FieldUse::kRefused, kEmpty},
    {"length_penalty", kAnswer, FieldUse::kIgnored, 0, kNeedsBeams},
    {"logit_bias", kAnswer, FieldUse::kServed, kEmptyList | kEmptyObject, "map or list of pairs"},
    {"logits_processors", kAnswer, FieldUse::kRefused, kEmpty},
    {"logprob_token_ids", kAnswer, FieldUse::kRefused, kEmpty},
    {"logprobs", kInChat, FieldUse::kServed, kFalse | kZero, "true or false"},
    {"logprobs", kInCompletion, FieldUse::kServed, kFalse, "a number"},
    {"lora", kAnswer, FieldUse::kRefused, kEmpty, "name the adapter in model"},
    {"max_completion_tokens", kAnswer, FieldUse::kServed, kMinusOne},
    {"max_tokens", kAnswer, FieldUse::kServed, kMinusOne},
    {"media_io_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty},
    {"messages", kInChat | kInTokenize, FieldUse::kServed},
    {"messages", kInCompletion, FieldUse::kRefused, kEmpty, kSendToChats},
    {"metadata", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"min_keep", kAnswer, FieldUse::kRefused, kZero},
    {"min_p", kAnswer, FieldUse::kServed},
    {"min_tokens", kAnswer, FieldUse::kServed},
    {"mirostat", kAnswer, FieldUse::kRefused, kZero},
    {"mirostat_eta", kAnswer, FieldUse::kIgnored, 0, kNeedsMirostat},
    {"mirostat_tau", kAnswer, FieldUse::kIgnored, 0, kNeedsMirostat},
    {"mm_processor_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty},
    {"modalities", kAnswer, FieldUse::kRefused, kEmpty | kWordList, "", 0, "text"},
    {"mode", kInBreakpoint, FieldUse::kIgnored, 0, "a breakpoint is always explicit"},
    {"mode", kInCacheOptions, FieldUse::kServed},
    {"model", kAnswer | kInTokenize | kInDetokenize, FieldUse::kServed, kEmptyText},
    {"moderation", kAnswer, FieldUse::kRefused, kEmpty},
    {"n", kAnswer, FieldUse::kServed},
    {"n_cache_reuse", kAnswer, FieldUse::kIgnored, 0, "restoring does not change the answer"},
    {"n_cmpl", kAnswer, FieldUse::kServed, 0, "same as n"},
    {"n_discard", kAnswer, FieldUse::kIgnored, 0, kNoShift},
    {"n_indent", kAnswer, FieldUse::kRefused, kZero},
    {"n_keep", kAnswer, FieldUse::kIgnored, 0, kNoShift},
    {"n_predict", kAnswer, FieldUse::kServed, kMinusOne, "same as max_tokens"},
    {"n_probs", kAnswer, FieldUse::kRefused, kZero, "send logprobs"},
    {"name", kInFunction, FieldUse::kServed, 0, "1 to 128 letters, digits, _ and -"},
    {"name", kInMessage, FieldUse::kIgnored, 0, "Gemma's chats have no names"},
    {"parallel_tool_calls", kInChat, FieldUse::kServed, kTrue, "false: at most one call"},
    {"parallel_tool_calls", kInCompletion, FieldUse::kIgnored, 0, "no effect without tools"},
    {"parameters", kInFunction, FieldUse::kServed, 0, "absent: a function without parameters"},
    {"parse_special", kInTokenize, FieldUse::kRefused, kTrue},
    {"parse_tool_calls", kAnswer, FieldUse::kIgnored, 0, "tool_choice decides about calls"},
    {"partial", kInMessage, FieldUse::kRefused, kFalse},
    {"post_sampling_probs", kAnswer, FieldUse::kRefused, kFalse},
    {"prediction", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"prefix", kInMessage, FieldUse::kRefused, kFalse},
    {"presence_penalty", kAnswer, FieldUse::kServed},
    {"preserved_tokens", kAnswer, FieldUse::kIgnored, 0, kNeedsGrammar},
    {"prewarm", kInCacheOptions, FieldUse::kServed, kFalse},
    {"priority", kAnswer, FieldUse::kIgnored, 0, kOnlyWhen},
    {"priority", kInCacheOptions, FieldUse::kServed},
    {"prompt", kInChat, FieldUse::kRefused, kEmpty, "send messages"},
    {"prompt", kInCompletion | kInTokenize, FieldUse::kServed},
    {"prompt_cache_breakpoint", kInMessage | kInPart, FieldUse::kServed, kFalse, "", kInBreakpoint},
    {"prompt_cache_key", kAnswer, FieldUse::kServed, 0, "returned in the answer"},
    {"prompt_cache_options", kAnswer, FieldUse::kServed, 0, "", kInCacheOptions},
    {"prompt_cache_retention", kAnswer, FieldUse::kIgnored, 0, "use prompt_cache_options.ttl"},
    {"prompt_embeds", kAnswer | kInPart, FieldUse::kRefused, kEmpty},
    {"prompt_logprobs", kAnswer, FieldUse::kRefused, kFalse,
     "send echo with logprobs to /v1/completions"},
    {"reasoning", kInMessage, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"reasoning_budget_end_tag", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"reasoning_budget_end_tags", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"reasoning_budget_message", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"reasoning_budget_start_tag", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"reasoning_budget_tokens", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"reasoning_content", kInMessage, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"reasoning_control", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"reasoning_effort", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"reasoning_format", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"refusal", kInMessage | kInPart, FieldUse::kRefused, kEmpty},
    {"regex", kAnswer | kInStructured, FieldUse::kRefused, kEmpty},
    {"repeat_last_n", kAnswer, FieldUse::kServed, kMinusOne,
     "must be -1 if a penalty is set: penalties count all tokens"},
    {"repeat_penalty", kAnswer, FieldUse::kServed, 0, "same as repetition_penalty"},
    {"repetition_detection", kAnswer, FieldUse::kRefused, kEmpty},
    {"repetition_penalty", kAnswer, FieldUse::kServed},
    {"request_id", kAnswer, FieldUse::kIgnored, 0, "send the header X-Request-Id"},
    {"response_fields", kAnswer, FieldUse::kRefused, kEmpty},
    {"response_format", kAnswer, FieldUse::kServed, kEmptyObject,
     "text, any JSON object, or a JSON schema", kInResponseFormat},
    {"return_mm_kwargs", kAnswer, FieldUse::kIgnored, 0, kOfImages},
    {"return_progress", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"return_prompt_text", kAnswer, FieldUse::kRefused, kFalse},
    {"return_token_ids", kAnswer, FieldUse::kRefused, kFalse},
    {"return_token_offsets", kAnswer, FieldUse::kIgnored, 0, "vLLM ignores it here, too"},
    {"return_token_strs", kInTokenize, FieldUse::kRefused, kFalse},
    {"return_tokens", kAnswer, FieldUse::kRefused, kFalse},
    {"return_tokens_as_token_ids", kAnswer, FieldUse::kRefused, kFalse},
    {"role", kInMessage, FieldUse::kServed},
    {"routed_experts_prompt_start", kAnswer, FieldUse::kIgnored, 0, "the model has no experts"},
    {"safety_identifier", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"samplers", kAnswer, FieldUse::kRefused, kEmpty | kAllWords,
     "llama.cpp's default order is accepted and ignored", 0,
     "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature"},
    {"schema", kInResponseFormat, FieldUse::kRefused, kEmpty, "put it into json_schema"},
    {"seed", kAnswer, FieldUse::kServed, kMinusOne},
    {"service_tier", kAnswer, FieldUse::kIgnored, 0, kOnlyWhen},
    {"session_id", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"skip_special_tokens", kAnswer, FieldUse::kRefused, kTrue},
    {"spaces_between_special_tokens", kAnswer, FieldUse::kIgnored, 0,
     "no effect with skip_special_tokens"},
    {"speculative.n_max", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"speculative.n_min", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"speculative.p_min", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"sse_ping_interval", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"stop", kAnswer, FieldUse::kServed, kEmptyText | kEmptyList | kEmptyTexts},
    {"stop_token_ids", kAnswer, FieldUse::kServed, kEmptyList},
    {"store", kAnswer, FieldUse::kIgnored, 0, "answers are not stored"},
    {"stream", kAnswer, FieldUse::kServed, kFalse},
    {"stream_interval", kAnswer, FieldUse::kIgnored, 0, "changes only the size of events"},
    {"stream_options", kAnswer, FieldUse::kServed, kFalse, "", kInStreamOptions},
    {"strict", kInFunction, FieldUse::kServed, kFalse,
     "true: refuse keywords that cannot be enforced"},
    {"structural_tag", kAnswer | kInStructured, FieldUse::kRefused, kEmpty},
    {"structured_outputs", kAnswer, FieldUse::kServed, kEmptyObject, "", kInStructured},
    {"suffix", kAnswer, FieldUse::kRefused, kEmpty},
    {"t_max_predict_ms", kAnswer, FieldUse::kRefused, kZero | kMinusOne},
    {"t_max_prompt_ms", kAnswer, FieldUse::kRefused, kZero | kMinusOne},
    {"task", kInMessage, FieldUse::kRefused, kEmpty},
    {"temperature", kAnswer, FieldUse::kServed},
    {"text", kInPart, FieldUse::kServed},
    {"thinking", kInPart, FieldUse::kRefused, kEmpty},
    {"thinking_token_budget", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"timings_per_token", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"tokens", kInDetokenize, FieldUse::kServed},
    {"tool_call_id", kInMessage, FieldUse::kServed, 0,
     "required in a tool message, not read in others"},
    {"tool_calls", kInMessage, FieldUse::kServed, kEmptyList, "in an assistant message"},
    {"tool_choice", kInChat, FieldUse::kServed, kFalse | kEmptyText, "", 0, "auto"},
    {"tool_choice", kInCompletion, FieldUse::kRefused, kEmpty, "send it to /v1/chat/completions", 0,
     "auto none"},
    {"tools", kInChat | kInTokenize, FieldUse::kServed, kEmpty, "functions only"},
    {"tools", kInCompletion, FieldUse::kRefused, kEmpty, kSendToChats},
    {"tools", kInMessage, FieldUse::kRefused, kEmpty},
    {"top_k", kAnswer, FieldUse::kServed, 0, "0 and -1: no limit"},
    {"top_logprobs", kInChat, FieldUse::kServed, kZero, "needs logprobs: true"},
    {"top_logprobs", kInCompletion, FieldUse::kRefused, kZero, "send logprobs as a number"},
    {"top_n_sigma", kAnswer, FieldUse::kRefused, kZero | kMinusOne},
    {"top_p", kAnswer, FieldUse::kServed},
    {"truncate_prompt_tokens", kInCompletion, FieldUse::kServed, 0,
     "only for a prompt of token ids; -1: context minus max_tokens"},
    {"truncate_prompt_tokens", kInChat | kInTokenize, FieldUse::kRefused},
    {"truncation_side", kInCompletion, FieldUse::kServed, 0, "left: drop the first tokens"},
    {"truncation_side", kInChat, FieldUse::kIgnored, 0, "no effect without truncate_prompt_tokens"},
    {"ttl", kInCacheOptions | kInBreakpoint | kInCacheControl, FieldUse::kServed},
    {"type", kInMessage, FieldUse::kIgnored, 0, "each content part has a type instead"},
    {"type", kInPart | kInResponseFormat | kInCacheControl | kInTool, FieldUse::kServed},
    {"typical_p", kAnswer, FieldUse::kRefused, kOne},
    {"use_beam_search", kAnswer, FieldUse::kRefused, kFalse},
    {"user", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"uuid", kInPart, FieldUse::kIgnored, 0, kOfImages},
    {"verbose", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"verbosity", kAnswer, FieldUse::kIgnored, 0, "Gemma's chats have no verbosity setting"},
    {"video_embeds", kInPart, FieldUse::kRefused, kEmpty},
    {"video_url", kInPart, FieldUse::kRefused, kEmpty},
    {"vllm_xargs", kAnswer, FieldUse::kRefused, kEmpty},
    {"watermarking", kAnswer, FieldUse::kRefused, kFalse},
    {"web_search_options", kAnswer, FieldUse::kRefused, kFalse | kEmptyText | kEmptyList},
    {"with_pieces", kInTokenize, FieldUse::kRefused, kFalse},
    {"xtc_probability", kAnswer, FieldUse::kRefused, kZero},
    {"xtc_threshold", kAnswer, FieldUse::kIgnored, 0, "no effect without xtc_probability"},
};

constexpr OpenAiField kOnlyForAnswers = {"", kInTokenize | kInDetokenize, FieldUse::kIgnored, 0,
                                         "applies only to answers"};

constexpr size_t kRows = sizeof(kFields) / sizeof(kFields[0]);

constexpr bool IsInOrder() {
  for (size_t i = 1; i < kRows; ++i) {
    const absl::string_view one = kFields[i - 1].name, next = kFields[i].name;
    if (one > next) return false;
    if (one == next && (kFields[i - 1].places & kFields[i].places) != 0) return false;
  }
  return true;
}
static_assert(IsInOrder(), "the rows of one name must be neighbours, and of different places");

auto WordsOf(const OpenAiField& field) {
  return absl::StrSplit(field.words, ' ', absl::SkipEmpty());
}

// Returns whether `list` contains exactly the words of the table row, in order.
bool IsWords(const OpenAiField& field, JsonValue list) {
  const auto words = WordsOf(field);
  auto next = words.begin();
  for (const JsonValue one : list.elements()) {
    if (next == words.end() || !one.Is(*next++)) return false;
  }
  return next == words.end();
}

bool IsWordOf(const OpenAiField& field, JsonValue value) {
  const auto words = WordsOf(field);
  return std::any_of(words.begin(), words.end(),
                     [&](absl::string_view word) { return value.Is(word); });
}

absl::Status RefuseField(JsonValue value, absl::string_view note) {
  return WithReason(value.Refuse(absl::StrCat("is not supported by this server; leave it out",
                                              note.empty() ? "" : ": ", note)),
                    kUnsupportedParameter);
}

}  // namespace

absl::Span<const OpenAiField> OpenAiFieldTable() { return kFields; }

const OpenAiField* FindOpenAiField(absl::string_view name, uint16_t place) {
  const auto is_before = [](const OpenAiField& row, absl::string_view other) {
    return row.name < other;
  };
  const OpenAiField* row = std::lower_bound(kFields, kFields + kRows, name, is_before);
  bool is_of_answers = false;
  for (; row != kFields + kRows && row->name == name; ++row) {
    if ((row->places & place) != 0) return row;
    is_of_answers = is_of_answers || (row->places & kAnswer) != 0;
  }
  const bool has_no_answer = (place & (kInTokenize | kInDetokenize)) != 0;
  return is_of_answers && has_no_answer ? &kOnlyForAnswers : nullptr;
}

bool AsksForNothing(const OpenAiField& field, JsonValue value) {
  const auto has = [&](FieldNothing bit) { return (field.nothing & bit) != 0; };
  if (value.is_null()) return true;
  if (value.is_number()) {
    return (has(kZero) && value.IsNumber(0)) || (has(kOne) && value.IsNumber(1)) ||
           (has(kMinusOne) && value.IsNumber(-1));
  }
  if (value.is_string()) {
    return (has(kEmptyText) && value.Is("")) || (!has(kAllWords) && IsWordOf(field, value));
  }
  if (value.is_object()) return has(kEmptyObject) && value.size() == 0;
  if (!value.is_list()) return has(value.IsBool(true) ? kTrue : kFalse);
  if (value.size() == 0) return has(kEmptyList);
  if (has(kAllWords)) return IsWords(field, value);
  if (value.size() > 1) return false;
  const JsonValue only = *value.elements().begin();
  return (has(kEmptyTexts) && only.Is("")) || (has(kWordList) && IsWordOf(field, only));
}

bool CountsAsAbsent(uint16_t place, absl::string_view name, JsonValue value) {
  const OpenAiField* const field = FindOpenAiField(name, place);
  return field != nullptr && AsksForNothing(*field, value);
}

absl::string_view PathOfPlace(uint16_t place) {
  constexpr std::pair<FieldPlace, absl::string_view> kPaths[] = {
      {kInMessage, "messages[]."},
      {kInPart, "messages[].content[]."},
      {kInStreamOptions, "stream_options."},
      {kInResponseFormat, "response_format."},
      {kInCacheOptions, "prompt_cache_options."},
      {kInBreakpoint, "prompt_cache_breakpoint."},
      {kInCacheControl, "cache_control."},
      {kInTemplate, "chat_template_kwargs."},
      {kInTool, "tools[]."},
      {kInFunction, "tools[].function."},
      {kInStructured, "structured_outputs."}};
  for (const auto& [its, path] : kPaths) {
    if (its == place) return path;
  }
  return "";
}

void UnknownFields::Add(uint16_t place, absl::string_view name) {
  if (has_more_) return;
  std::string path(PathOfPlace(place));
  for (const char c : name.substr(0, kMaxNameBytes)) {
    path.push_back(IsPlainName({&c, 1}) ? c : '?');
  }
  if (name.size() > kMaxNameBytes) path += "...";
  if (std::find(names_.begin(), names_.end(), path) != names_.end()) return;
  has_more_ = names_.size() == kMaxNames;
  if (!has_more_) names_.push_back(std::move(path));
}

std::string UnknownFields::Text() const {
  return absl::StrCat(absl::StrJoin(names_, ", "), has_more_ ? ", ..." : "");
}

absl::Status CheckOpenAiFields(JsonValue object, uint16_t place, UnknownFields* unknown) {
  for (const JsonValue value : object.fields()) {
    if (value.is_null()) continue;
    const OpenAiField* const row = FindOpenAiField(value.name(), place);
    if (row == nullptr && place == kInTemplate) {
      if (!value.IsBool(false)) return RefuseField(value, "");
      continue;
    }
    if (row == nullptr) {
      unknown->Add(place, value.name());
      continue;
    }
    if (row->inner != 0 && value.is_object()) {
      if (absl::Status s = CheckOpenAiFields(value, row->inner, unknown); !s.ok()) return s;
    } else if (row->use == FieldUse::kRefused && !AsksForNothing(*row, value)) {
      return RefuseField(value, row->note);
    }
  }
  return absl::OkStatus();
}

}  // namespace hearth
