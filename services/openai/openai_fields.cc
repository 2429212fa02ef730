#include "services/openai/openai_fields.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/plain_name.h"

namespace hearth {
namespace {

constexpr uint16_t kAnswer = kInChat | kInCompletion;
constexpr uint16_t kEmpty = kFalse | kEmptyText | kEmptyList | kEmptyObject;

// Notes of several rows.
constexpr char kAsBreakpoint[] = "as prompt_cache_breakpoint";
constexpr char kCallerNote[] = "a note of the caller";
constexpr char kNeedsBeams[] = "no effect without use_beam_search";
constexpr char kNeedsDry[] = "no effect without dry_multiplier";
constexpr char kNeedsGrammar[] = "no effect without grammar or tools";
constexpr char kNeedsGuide[] = "no effect without another guided field";
constexpr char kNeedsMirostat[] = "no effect without mirostat";
constexpr char kNoPart[] = "no part of the answer";
constexpr char kNoReasoning[] = "answers have no reasoning part";
constexpr char kNoReasoningInChat[] = "Gemma's chats have no reasoning part";
constexpr char kNoShift[] = "a context is never shifted";
constexpr char kOfImages[] = "of images only";
constexpr char kOnlyTime[] = "a hint that only saves time";
constexpr char kOnlyWhen[] = "when the request runs";
constexpr char kPutInside[] = "put it into a message or a content part";

// Columns as in OpenAiField. A field is ignored only if it cannot change the tokens of an answer,
// nor leave out something that the caller would read as the answer.
constexpr OpenAiField kFields[] = {
    {"adaptive_decay", kAnswer, FieldUse::kIgnored, 0, "", "no effect without adaptive_target", 0},
    {"adaptive_target", kAnswer, FieldUse::kRefused, kMinusOne, "", "", 0},
    {"add_generation_prompt", kInChat | kInTokenize, FieldUse::kServed, kTrue, "",
     "false: only if the last message is an answer", 0},
    {"add_special", kInTokenize, FieldUse::kRefused, kTrue, "", "send add_special_tokens", 0},
    {"add_special_tokens", kInChat, FieldUse::kRefused, kFalse, "", "a chat begins with <bos> once",
     0},
    {"add_special_tokens", kInCompletion, FieldUse::kServed, kTrue, "", "false: without <bos>", 0},
    {"add_special_tokens", kInTokenize, FieldUse::kServed, 0, "",
     "false: without <bos>; not with messages", 0},
    {"allowed_token_ids", kAnswer, FieldUse::kRefused, kEmpty, "",
     "send logit_bias or bad_token_ids", 0},
    {"annotations", kInMessage, FieldUse::kIgnored, 0, "",
     "of an earlier answer, not a part of the prompt", 0},
    {"audio", kAnswer | kInMessage, FieldUse::kRefused, kEmpty, "", "", 0},
    {"audio_embeds", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"audio_url", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"backend_sampling", kAnswer, FieldUse::kIgnored, 0, "", "where tokens are drawn", 0},
    {"bad_token_ids", kAnswer, FieldUse::kServed, kEmptyList, "", "", 0},
    {"bad_words", kAnswer, FieldUse::kServed, kEmptyList | kEmptyText | kEmptyTexts, "",
     "words of one token", 0},
    {"best_of", kAnswer, FieldUse::kServed, 0, "", "must equal n", 0},
    {"cache_breakpoint", kAnswer, FieldUse::kRefused, kFalse, "", kPutInside, 0},
    {"cache_breakpoint", kInMessage | kInPart, FieldUse::kServed, kFalse, "", kAsBreakpoint, 0},
    {"cache_control", kAnswer, FieldUse::kRefused, kEmpty, "", kPutInside, 0},
    {"cache_control", kInMessage | kInPart, FieldUse::kServed, kFalse, "", kAsBreakpoint,
     kInCacheControl},
    {"cache_prompt", kAnswer, FieldUse::kServed, kTrue, "",
     "false: the request reads and keeps nothing", 0},
    {"cache_salt", kAnswer, FieldUse::kRefused, kEmptyText, "",
     "callers are kept apart by their identity (--identities-file), not by a salt", 0},
    {"chat_format", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"chat_parser", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"chat_template", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "", "", 0},
    {"chat_template_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "",
     "null and false ask for nothing", kInTemplate},
    {"content", kInTokenize, FieldUse::kRefused, kEmpty, "", "send prompt", 0},
    {"content", kInMessage, FieldUse::kServed, 0, "", "", 0},
    {"continue_final_message", kInChat | kInTokenize, FieldUse::kServed, kFalse, "",
     "the last message is an answer, and is continued", 0},
    {"continue_final_message", kInCompletion, FieldUse::kRefused, kFalse, "",
     "the prompt is continued", 0},
    {"continuous_usage_stats", kInStreamOptions, FieldUse::kIgnored, 0, "",
     "the last event has the usage", 0},
    {"documents", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "", "", 0},
    {"dry_allowed_length", kAnswer, FieldUse::kIgnored, 0, "", kNeedsDry, 0},
    {"dry_base", kAnswer, FieldUse::kIgnored, 0, "", kNeedsDry, 0},
    {"dry_multiplier", kAnswer, FieldUse::kRefused, kZero, "", "", 0},
    {"dry_penalty_last_n", kAnswer, FieldUse::kIgnored, 0, "", kNeedsDry, 0},
    {"dry_sequence_breakers", kAnswer, FieldUse::kIgnored, 0, "", kNeedsDry, 0},
    {"dynatemp_exponent", kAnswer, FieldUse::kIgnored, 0, "", "no effect without dynatemp_range",
     0},
    {"dynatemp_range", kAnswer, FieldUse::kRefused, kZero, "", "", 0},
    {"early_stopping", kAnswer, FieldUse::kIgnored, 0, "", kNeedsBeams, 0},
    {"ebnf", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"ec_transfer_params", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"echo", kInChat, FieldUse::kRefused, kFalse, "", "", 0},
    {"echo", kInCompletion, FieldUse::kServed, kFalse, "", "with max_tokens 0: the prompt alone",
     0},
    {"enable_thinking", kInTemplate, FieldUse::kIgnored, 0, "", kNoReasoningInChat, 0},
    {"file", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"frequency_penalty", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"function_call", kAnswer, FieldUse::kRefused, kEmpty, "auto none", "", 0},
    {"function_call", kInMessage, FieldUse::kRefused, kEmpty, "", "", 0},
    {"functions", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "", "", 0},
    {"generation_prompt", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"grammar", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"grammar_lazy", kAnswer, FieldUse::kIgnored, 0, "", kNeedsGrammar, 0},
    {"grammar_triggers", kAnswer, FieldUse::kIgnored, 0, "", kNeedsGrammar, 0},
    {"grammar_type", kAnswer, FieldUse::kIgnored, 0, "", kNeedsGrammar, 0},
    {"guided_choice", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"guided_decoding_backend", kAnswer, FieldUse::kIgnored, 0, "", kNeedsGuide, 0},
    {"guided_grammar", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"guided_json", kAnswer, FieldUse::kRefused, kFalse | kEmptyText, "", "", 0},
    {"guided_json_object", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"guided_regex", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"guided_whitespace_pattern", kAnswer, FieldUse::kIgnored, 0, "", kNeedsGuide, 0},
    {"id_slot", kAnswer, FieldUse::kIgnored, 0, "", "where the request runs", 0},
    {"ignore_eos", kAnswer, FieldUse::kServed, kFalse, "", "", 0},
    {"image_embeds", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"image_url", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"include_obfuscation", kInStreamOptions, FieldUse::kIgnored, 0, "", "padding of events", 0},
    {"include_reasoning", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"include_stop_str_in_output", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"include_usage", kInStreamOptions, FieldUse::kServed, kFalse, "", "", 0},
    {"input_audio", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"input_video", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"json_schema", kAnswer | kInResponseFormat, FieldUse::kRefused, kFalse | kEmptyText, "", "",
     0},
    {"keep", kInCacheOptions, FieldUse::kServed, 0, "", "", 0},
    {"kv_transfer_params", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"length_penalty", kAnswer, FieldUse::kIgnored, 0, "", kNeedsBeams, 0},
    {"logit_bias", kAnswer, FieldUse::kServed, kEmptyList | kEmptyObject, "",
     "also a list of pairs", 0},
    {"logits_processors", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"logprob_token_ids", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"logprobs", kInChat, FieldUse::kServed, kFalse | kZero, "", "true or false", 0},
    {"logprobs", kInCompletion, FieldUse::kServed, kFalse, "", "a number", 0},
    {"lora", kAnswer, FieldUse::kRefused, kEmpty, "", "name an adapter as the model", 0},
    {"max_completion_tokens", kAnswer, FieldUse::kServed, kMinusOne, "", "", 0},
    {"max_tokens", kAnswer, FieldUse::kServed, kMinusOne, "", "", 0},
    {"media_io_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "", "", 0},
    {"messages", kInChat | kInTokenize, FieldUse::kServed, 0, "", "", 0},
    {"messages", kInCompletion, FieldUse::kRefused, kEmpty, "", "send them to /v1/chat/completions",
     0},
    {"metadata", kAnswer, FieldUse::kIgnored, 0, "", kCallerNote, 0},
    {"min_keep", kAnswer, FieldUse::kRefused, kZero, "", "", 0},
    {"min_p", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"min_tokens", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"mirostat", kAnswer, FieldUse::kRefused, kZero, "", "", 0},
    {"mirostat_eta", kAnswer, FieldUse::kIgnored, 0, "", kNeedsMirostat, 0},
    {"mirostat_tau", kAnswer, FieldUse::kIgnored, 0, "", kNeedsMirostat, 0},
    {"mm_processor_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "", "", 0},
    {"modalities", kAnswer, FieldUse::kRefused, kEmpty | kWordList, "text", "", 0},
    {"mode", kInBreakpoint, FieldUse::kIgnored, 0, "", "a breakpoint is explicit", 0},
    {"mode", kInCacheOptions, FieldUse::kServed, 0, "", "", 0},
    {"model", kAnswer | kInTokenize | kInDetokenize, FieldUse::kServed, kEmptyText, "", "", 0},
    {"moderation", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"n", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"n_cache_reuse", kAnswer, FieldUse::kIgnored, 0, "",
     "what is restored does not change the answer", 0},
    {"n_cmpl", kAnswer, FieldUse::kServed, 0, "", "as n", 0},
    {"n_discard", kAnswer, FieldUse::kIgnored, 0, "", kNoShift, 0},
    {"n_indent", kAnswer, FieldUse::kRefused, kZero, "", "", 0},
    {"n_keep", kAnswer, FieldUse::kIgnored, 0, "", kNoShift, 0},
    {"n_predict", kAnswer, FieldUse::kServed, kMinusOne, "", "as max_tokens", 0},
    {"n_probs", kAnswer, FieldUse::kRefused, kZero, "", "send logprobs", 0},
    {"name", kInMessage, FieldUse::kIgnored, 0, "", "Gemma's chats have no names", 0},
    {"parallel_tool_calls", kAnswer, FieldUse::kIgnored, 0, "", "no effect without tools", 0},
    {"parse_special", kInTokenize, FieldUse::kRefused, kTrue, "", "", 0},
    {"parse_tool_calls", kAnswer, FieldUse::kIgnored, 0, "", "no effect without tools", 0},
    {"partial", kInMessage, FieldUse::kRefused, kFalse, "", "", 0},
    {"post_sampling_probs", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"prediction", kAnswer, FieldUse::kIgnored, 0, "", kOnlyTime, 0},
    {"prefix", kInMessage, FieldUse::kRefused, kFalse, "", "", 0},
    {"presence_penalty", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"preserved_tokens", kAnswer, FieldUse::kIgnored, 0, "", kNeedsGrammar, 0},
    {"prewarm", kInCacheOptions, FieldUse::kServed, kFalse, "", "", 0},
    {"priority", kAnswer, FieldUse::kIgnored, 0, "", kOnlyWhen, 0},
    {"priority", kInCacheOptions, FieldUse::kServed, 0, "", "", 0},
    {"prompt", kInChat, FieldUse::kRefused, kEmpty, "", "send messages", 0},
    {"prompt", kInCompletion | kInTokenize, FieldUse::kServed, 0, "", "", 0},
    {"prompt_cache_breakpoint", kInMessage | kInPart, FieldUse::kServed, kFalse, "", "",
     kInBreakpoint},
    {"prompt_cache_key", kAnswer, FieldUse::kServed, 0, "", "is given back", 0},
    {"prompt_cache_options", kAnswer, FieldUse::kServed, 0, "", "", kInCacheOptions},
    {"prompt_cache_retention", kAnswer, FieldUse::kIgnored, 0, "",
     "prompt_cache_options.ttl says how long prefixes are kept", 0},
    {"prompt_embeds", kAnswer | kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"prompt_logprobs", kAnswer, FieldUse::kRefused, kFalse, "",
     "send echo with logprobs to /v1/completions", 0},
    {"reasoning", kInMessage, FieldUse::kIgnored, 0, "", kNoReasoningInChat, 0},
    {"reasoning_budget_end_tag", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"reasoning_budget_end_tags", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"reasoning_budget_message", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"reasoning_budget_start_tag", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"reasoning_budget_tokens", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"reasoning_content", kInMessage, FieldUse::kIgnored, 0, "", kNoReasoningInChat, 0},
    {"reasoning_control", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"reasoning_effort", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"reasoning_format", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"refusal", kInMessage | kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"regex", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"repeat_last_n", kAnswer, FieldUse::kServed, kMinusOne, "",
     "must be -1 with a penalty: all tokens count", 0},
    {"repeat_penalty", kAnswer, FieldUse::kServed, 0, "", "as repetition_penalty: of all tokens",
     0},
    {"repetition_detection", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"repetition_penalty", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"request_id", kAnswer, FieldUse::kIgnored, 0, "", "send the header X-Request-Id", 0},
    {"response_fields", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"response_format", kAnswer, FieldUse::kServed, kEmptyObject, "", "{\"type\": \"text\"}",
     kInResponseFormat},
    {"return_mm_kwargs", kAnswer, FieldUse::kIgnored, 0, "", kOfImages, 0},
    {"return_progress", kAnswer, FieldUse::kIgnored, 0, "", kNoPart, 0},
    {"return_prompt_text", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"return_token_ids", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"return_token_offsets", kAnswer, FieldUse::kIgnored, 0, "", "vLLM ignores it here, too", 0},
    {"return_token_strs", kInTokenize, FieldUse::kRefused, kFalse, "", "", 0},
    {"return_tokens", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"return_tokens_as_token_ids", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"role", kInMessage, FieldUse::kServed, 0, "", "", 0},
    {"routed_experts_prompt_start", kAnswer, FieldUse::kIgnored, 0, "", "the model has no experts",
     0},
    {"safety_identifier", kAnswer, FieldUse::kIgnored, 0, "", kCallerNote, 0},
    {"samplers", kAnswer, FieldUse::kRefused, kEmpty | kAllWords,
     "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature",
     "llama.cpp's own order asks for nothing", 0},
    {"schema", kInResponseFormat, FieldUse::kRefused, kEmpty, "", "", 0},
    {"seed", kAnswer, FieldUse::kServed, kMinusOne, "", "", 0},
    {"service_tier", kAnswer, FieldUse::kIgnored, 0, "", kOnlyWhen, 0},
    {"session_id", kAnswer, FieldUse::kIgnored, 0, "", kCallerNote, 0},
    {"skip_special_tokens", kAnswer, FieldUse::kRefused, kTrue, "", "", 0},
    {"spaces_between_special_tokens", kAnswer, FieldUse::kIgnored, 0, "",
     "no effect with skip_special_tokens", 0},
    {"speculative.n_max", kAnswer, FieldUse::kIgnored, 0, "", kOnlyTime, 0},
    {"speculative.n_min", kAnswer, FieldUse::kIgnored, 0, "", kOnlyTime, 0},
    {"speculative.p_min", kAnswer, FieldUse::kIgnored, 0, "", kOnlyTime, 0},
    {"sse_ping_interval", kAnswer, FieldUse::kIgnored, 0, "", kNoPart, 0},
    {"stop", kAnswer, FieldUse::kServed, kEmptyText | kEmptyList | kEmptyTexts, "", "", 0},
    {"stop_token_ids", kAnswer, FieldUse::kServed, kEmptyList, "", "", 0},
    {"store", kAnswer, FieldUse::kIgnored, 0, "", "answers are not stored", 0},
    {"stream", kAnswer, FieldUse::kServed, kFalse, "", "", 0},
    {"stream_interval", kAnswer, FieldUse::kIgnored, 0, "", "how the answer is cut into events", 0},
    {"stream_options", kAnswer, FieldUse::kServed, kFalse, "", "", kInStreamOptions},
    {"structural_tag", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"structured_outputs", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"suffix", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"t_max_predict_ms", kAnswer, FieldUse::kRefused, kZero | kMinusOne, "", "", 0},
    {"t_max_prompt_ms", kAnswer, FieldUse::kRefused, kZero | kMinusOne, "", "", 0},
    {"task", kInMessage, FieldUse::kRefused, kEmpty, "", "", 0},
    {"temperature", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"text", kInPart, FieldUse::kServed, 0, "", "", 0},
    {"thinking", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"thinking_token_budget", kAnswer, FieldUse::kIgnored, 0, "", kNoReasoning, 0},
    {"timings_per_token", kAnswer, FieldUse::kIgnored, 0, "", kNoPart, 0},
    {"tokens", kInDetokenize, FieldUse::kServed, 0, "", "", 0},
    {"tool_call_id", kInMessage, FieldUse::kRefused, kEmpty, "", "", 0},
    {"tool_calls", kInMessage, FieldUse::kRefused, kEmpty, "", "", 0},
    {"tool_choice", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty, "auto none", "", 0},
    {"tools", kAnswer | kInTokenize | kInMessage, FieldUse::kRefused, kEmpty, "", "", 0},
    {"top_k", kAnswer, FieldUse::kServed, 0, "", "0 and -1: all tokens", 0},
    {"top_logprobs", kInChat, FieldUse::kServed, kZero, "", "with logprobs", 0},
    {"top_logprobs", kInCompletion, FieldUse::kRefused, kZero, "", "send logprobs as a number", 0},
    {"top_n_sigma", kAnswer, FieldUse::kRefused, kZero | kMinusOne, "", "", 0},
    {"top_p", kAnswer, FieldUse::kServed, 0, "", "", 0},
    {"truncate_prompt_tokens", kInCompletion, FieldUse::kServed, 0, "",
     "of a prompt of token ids; -1: what leaves room for the answer", 0},
    {"truncate_prompt_tokens", kInChat | kInTokenize, FieldUse::kRefused, 0, "", "", 0},
    {"truncation_side", kInCompletion, FieldUse::kServed, 0, "", "left: the last tokens are kept",
     0},
    {"truncation_side", kInChat, FieldUse::kIgnored, 0, "",
     "no effect without truncate_prompt_tokens", 0},
    {"ttl", kInCacheOptions | kInBreakpoint | kInCacheControl, FieldUse::kServed, 0, "", "", 0},
    {"type", kInMessage, FieldUse::kIgnored, 0, "", "lm-eval sends it; content has the types", 0},
    {"type", kInPart | kInResponseFormat | kInCacheControl, FieldUse::kServed, 0, "", "", 0},
    {"typical_p", kAnswer, FieldUse::kRefused, kOne, "", "", 0},
    {"use_beam_search", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"user", kAnswer, FieldUse::kIgnored, 0, "", kCallerNote, 0},
    {"uuid", kInPart, FieldUse::kIgnored, 0, "", kOfImages, 0},
    {"verbose", kAnswer, FieldUse::kIgnored, 0, "", kNoPart, 0},
    {"verbosity", kAnswer, FieldUse::kIgnored, 0, "", "Gemma's chats have no such hint", 0},
    {"video_embeds", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"video_url", kInPart, FieldUse::kRefused, kEmpty, "", "", 0},
    {"vllm_xargs", kAnswer, FieldUse::kRefused, kEmpty, "", "", 0},
    {"watermarking", kAnswer, FieldUse::kRefused, kFalse, "", "", 0},
    {"web_search_options", kAnswer, FieldUse::kRefused, kFalse | kEmptyText | kEmptyList, "", "",
     0},
    {"with_pieces", kInTokenize, FieldUse::kRefused, kFalse, "", "", 0},
    {"xtc_probability", kAnswer, FieldUse::kRefused, kZero, "", "", 0},
    {"xtc_threshold", kAnswer, FieldUse::kIgnored, 0, "", "no effect without xtc_probability", 0},
};

constexpr OpenAiField kOnlyForAnswers = {
    "", kInTokenize | kInDetokenize, FieldUse::kIgnored, 0, "", "only for answers", 0};

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

// The first row of the name; kRows: there is none.
size_t FirstRowOf(absl::string_view name) {
  static const auto& rows = *new absl::flat_hash_map<absl::string_view, size_t>([] {
    absl::flat_hash_map<absl::string_view, size_t> made;
    for (size_t i = 0; i < kRows; ++i) made.try_emplace(kFields[i].name, i);
    return made;
  }());
  const auto found = rows.find(name);
  return found == rows.end() ? kRows : found->second;
}

auto WordsOf(const OpenAiField& field) {
  return absl::StrSplit(field.words, ' ', absl::SkipEmpty());
}

// Whether the list has the field's words, in their order.
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
  return value.Refuse(
      absl::StrCat("is not served by this server; leave it out", note.empty() ? "" : ": ", note));
}

}  // namespace

absl::Span<const OpenAiField> OpenAiFieldTable() { return kFields; }

const OpenAiField* FindOpenAiField(absl::string_view name, uint16_t place) {
  bool is_of_answers = false;
  for (size_t i = FirstRowOf(name); i < kRows && kFields[i].name == name; ++i) {
    if ((kFields[i].places & place) != 0) return &kFields[i];
    is_of_answers = is_of_answers || (kFields[i].places & kAnswer) != 0;
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
  switch (place) {
    case kInMessage:
      return "messages[].";
    case kInPart:
      return "messages[].content[].";
    case kInStreamOptions:
      return "stream_options.";
    case kInResponseFormat:
      return "response_format.";
    case kInCacheOptions:
      return "prompt_cache_options.";
    case kInBreakpoint:
      return "prompt_cache_breakpoint.";
    case kInCacheControl:
      return "cache_control.";
    case kInTemplate:
      return "chat_template_kwargs.";
    default:
      return "";
  }
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
  for (const JsonField field : object.fields()) {
    const JsonValue value = field.value();
    if (value.is_null()) continue;
    const OpenAiField* const row = FindOpenAiField(field.name(), place);
    if (row == nullptr && place == kInTemplate) {
      if (!value.IsBool(false)) return RefuseField(value, "");
      continue;
    }
    if (row == nullptr) {
      unknown->Add(place, field.name());
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
