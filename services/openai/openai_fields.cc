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

constexpr uint64_t kAnswer = kInChat | kInCompletion;
// Objects whose end may be a breakpoint.
constexpr uint64_t kMessages = kInMessage | kInPart | kInItem | kInItemPart;
constexpr uint16_t kEmpty = kFalse | kEmptyText | kEmptyList | kEmptyObject;

// Notes that several rows of the table share.
constexpr char kAsBreakpoint[] = "same as prompt_cache_breakpoint";
constexpr char kCallerNote[] = "for the caller; not used here";
constexpr char kFormatNote[] = "text, any JSON object, or a JSON schema";
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
constexpr char kOnlyWhere[] = "changes only where the request runs";
constexpr char kOnlyWhen[] = "changes only when the request runs";
constexpr char kPutInside[] = "put it into a message or a content part";
constexpr char kNoState[] = "nothing is stored: send the earlier items in input";
constexpr char kNotShown[] = "not part of the prompt";
constexpr char kOneAnswer[] = "send several requests";
constexpr char kSchemaNote[] = "a schema, or its JSON text";
constexpr char kSendMaxOutput[] = "send max_output_tokens";
constexpr char kSendTextFormat[] = "send text.format";
constexpr char kSendToChats[] = "send them to /v1/chat/completions";

// Columns: the members of OpenAiField. A field may be ignored only if it changes neither the tokens
// nor the content of a response.
constexpr OpenAiField kFields[] = {
    {"access_programs", kInResponses, FieldUse::kIgnored, 0, kNoPart},
    {"adaptive_decay", kAnswer, FieldUse::kIgnored, 0, "no effect without adaptive_target"},
    {"adaptive_target", kAnswer, FieldUse::kRefused, kMinusOne},
    {"add_generation_prompt", kInChat | kInTokenize, FieldUse::kServed, kTrue,
     "may be false only if the last message is the assistant's"},
    {"add_generation_prompt", kInResponses, FieldUse::kRefused, kTrue},
    {"add_special", kInTokenize, FieldUse::kRefused, kTrue, "send add_special_tokens"},
    {"add_special_tokens", kInChat, FieldUse::kRefused, kFalse, "the template adds <bos>"},
    {"add_special_tokens", kInCompletion, FieldUse::kServed, kTrue,
     "false: no <bos> before the prompt"},
    {"add_special_tokens", kInTokenize, FieldUse::kServed, 0,
     "false: no <bos> before the prompt; must be absent with messages"},
    {"allowed_callers", kInFlatTool, FieldUse::kRefused, kEmptyList | kWordList, "", 0, "direct"},
    {"allowed_callers", kInCustomTool, FieldUse::kRefused, kEmptyList | kWordList,
     "only direct calls are served", 0, "direct"},
    {"allowed_token_ids", kAnswer, FieldUse::kRefused, kEmpty, "send logit_bias or bad_token_ids"},
    {"allowed_tools", kInChoice, FieldUse::kServed, 0, "", kInAllowedTools},
    {"annotations", kInMessage, FieldUse::kIgnored, 0, "not part of the prompt"},
    {"annotations", kInItemPart, FieldUse::kIgnored, 0, kNotShown},
    {"arguments", kInItem | kInCallFunction, FieldUse::kServed, 0,
     "JSON text of a call's arguments"},
    {"async", kInItem, FieldUse::kIgnored, 0, kNotShown},
    {"async", kInFlatTool, FieldUse::kRefused, kFalse},
    {"audio", kAnswer | kInMessage, FieldUse::kRefused, kEmpty},
    {"audio_embeds", kInPart, FieldUse::kRefused, kEmpty},
    {"audio_url", kInPart, FieldUse::kRefused, kEmpty},
    {"backend_sampling", kAnswer, FieldUse::kIgnored, 0, "changes only the sampling device"},
    {"background", kInResponses, FieldUse::kRefused, kFalse, "send stream"},
    {"background_options", kInResponses, FieldUse::kRefused, kEmpty, "send stream"},
    {"bad_token_ids", kAnswer, FieldUse::kServed, kEmptyList},
    {"bad_words", kAnswer, FieldUse::kServed, kEmptyList | kEmptyText | kEmptyTexts,
     "each word must be one token"},
    {"best_of", kAnswer, FieldUse::kServed, 0, "must equal n"},
    {"best_of", kInResponses, FieldUse::kRefused, kOne, kOneAnswer},
    {"billing_policy", kInMessages, FieldUse::kIgnored, 0, kCallerNote},
    {"cache_breakpoint", kAnswer, FieldUse::kRefused, kFalse, kPutInside},
    {"cache_breakpoint", kMessages, FieldUse::kServed, kFalse, kAsBreakpoint, kInBreakpoint},
    {"cache_control", kAnswer, FieldUse::kRefused, kEmpty, kPutInside},
    {"cache_control", kMessages, FieldUse::kServed, kFalse, kAsBreakpoint, kInCacheControl},
    {"cache_control", kInMessages, FieldUse::kServed, kFalse,
     "a breakpoint at the end of the last message", kInCacheControl},
    {"cache_control", kInBlock | kInCustomTool, FieldUse::kServed, kFalse,
     "a breakpoint at the end", kInCacheControl},
    {"cache_prompt", kAnswer, FieldUse::kServed, kTrue,
     "false: neither reads nor writes the cache"},
    {"cache_salt", kAnswer, FieldUse::kRefused, kEmptyText,
     "to separate callers, use --identities-file"},
    {"call_id", kInItem, FieldUse::kServed, 0, "of function_call and function_call_output"},
    {"caller", kInItem, FieldUse::kIgnored, 0, kNotShown},
    {"caller", kInBlock, FieldUse::kIgnored, 0, "not part of the prompt"},
    {"chat_format", kAnswer, FieldUse::kRefused, kEmpty},
    {"chat_parser", kAnswer, FieldUse::kRefused, kEmpty},
    {"chat_template", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty},
    {"chat_template_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty,
     "values null and false are ignored", kInTemplate},
    {"choice", kInStructured, FieldUse::kRefused, kEmpty, "send json with an enum"},
    {"citations", kInBlock, FieldUse::kIgnored, 0, "not part of the prompt"},
    {"client_metadata", kInResponses, FieldUse::kIgnored, 0, kCallerNote},
    {"compaction", kInMessages, FieldUse::kRefused, kEmpty,
     "the client must shorten the conversation"},
    {"comparison_response_id", kInCacheOptions, FieldUse::kIgnored, 0,
     "the response says comparison_response_not_found"},
    {"container", kInMessages, FieldUse::kRefused, kEmpty},
    {"content", kInTokenize, FieldUse::kRefused, kEmpty, "send prompt"},
    {"content", kInMessage, FieldUse::kServed, 0, "may be null in an assistant's message"},
    {"content", kInItem, FieldUse::kServed},
    {"content", kInTurn, FieldUse::kServed},
    {"content", kInBlock, FieldUse::kServed, 0, "of a tool_result"},
    {"context_management", kInResponses, FieldUse::kRefused, kEmpty, "shorten input yourself"},
    {"context_management", kInMessages, FieldUse::kIgnored, 0,
     "not applied: the prompt has the whole conversation, without thinking"},
    {"continue_final_message", kInChat | kInTokenize, FieldUse::kServed, kFalse,
     "the answer continues the last message"},
    {"continue_final_message", kInCompletion, FieldUse::kRefused, kFalse,
     "the answer always continues the prompt"},
    {"continue_final_message", kInResponses, FieldUse::kRefused, kFalse},
    {"continuous_usage_stats", kInStreamOptions, FieldUse::kIgnored, 0,
     "the last event always has the usage"},
    {"conversation", kInResponses, FieldUse::kRefused, kEmpty, kNoState},
    {"data", kInBlock, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"defer_loading", kInFlatTool, FieldUse::kRefused, kFalse, "send only the tools to list"},
    {"defer_loading", kInCustomTool, FieldUse::kServed, kFalse,
     "true: the prompt lists the tool only after a tool_reference"},
    {"description", kInFunction | kInFlatTool, FieldUse::kServed},
    {"description", kInTextFormat | kInSchema, FieldUse::kIgnored, 0, kNotShown},
    {"description", kInCustomTool, FieldUse::kServed},
    {"diagnostics", kInMessages, FieldUse::kIgnored, 0, "send hearth_explain"},
    {"disable_any_whitespace", kInStructured, FieldUse::kIgnored, 0,
     "white space is always canonical"},
    {"disable_parallel_tool_use", kInToolChoice, FieldUse::kServed, kFalse,
     "true: at most one call"},
    {"documents", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty},
    {"dry_allowed_length", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dry_base", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dry_multiplier", kAnswer, FieldUse::kRefused, kZero},
    {"dry_penalty_last_n", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dry_sequence_breakers", kAnswer, FieldUse::kIgnored, 0, kNeedsDry},
    {"dynatemp_exponent", kAnswer, FieldUse::kIgnored, 0, "no effect without dynatemp_range"},
    {"dynatemp_range", kAnswer, FieldUse::kRefused, kZero},
    {"eager_input_streaming", kInCustomTool, FieldUse::kIgnored, 0,
     "arguments are always streamed"},
    {"early_stopping", kAnswer, FieldUse::kIgnored, 0, kNeedsBeams},
    {"ebnf", kAnswer, FieldUse::kRefused, kEmpty},
    {"ec_transfer_params", kAnswer, FieldUse::kRefused, kEmpty},
    {"echo", kInChat, FieldUse::kRefused, kFalse},
    {"echo", kInCompletion, FieldUse::kServed, kFalse,
     "with max_tokens 0, the answer is only the prompt"},
    {"effort", kInOutputConfig, FieldUse::kIgnored, 0, kNoReasoning},
    {"enable_thinking", kInTemplate, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"fallback_credit_token", kInMessages, FieldUse::kIgnored, 0, kCallerNote},
    {"fallbacks", kInMessages, FieldUse::kIgnored, 0, "the requested model always answers"},
    {"file", kInPart, FieldUse::kRefused, kEmpty},
    {"format", kInText, FieldUse::kServed, kEmptyObject, kFormatNote, kInTextFormat},
    {"format", kInOutputConfig, FieldUse::kServed, kEmptyObject, "", kInOutputFormat},
    {"frequency_penalty", kAnswer, FieldUse::kServed},
    {"function", kInTool, FieldUse::kServed, 0, "", kInFunction},
    {"function", kInCall, FieldUse::kServed, 0, "", kInCallFunction},
    {"function", kInChoice, FieldUse::kServed, 0, "", kInChoiceFunction},
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
    {"guided_json", kInResponses, FieldUse::kRefused, kEmpty, kSendTextFormat},
    {"guided_json_object", kAnswer, FieldUse::kRefused, kEmpty},
    {"guided_regex", kAnswer, FieldUse::kRefused, kEmpty},
    {"guided_whitespace_pattern", kAnswer, FieldUse::kIgnored, 0, kNeedsGuide},
    {"hearth_explain", kAnswer | kInMessages, FieldUse::kServed, kFalse,
     "usage.hearth_cache says what the store had; one prompt only"},
    {"id", kInCall, FieldUse::kServed},
    {"id", kInItem, FieldUse::kIgnored, 0, kNotShown},
    {"id", kInBlock, FieldUse::kServed, 0, "of a tool_use"},
    {"id_slot", kAnswer, FieldUse::kIgnored, 0, kOnlyWhere},
    {"ignore_eos", kAnswer, FieldUse::kServed, kFalse},
    {"image", kInResponses, FieldUse::kIgnored, 0, kOfImages},
    {"image_embeds", kInPart, FieldUse::kRefused, kEmpty},
    {"image_url", kInPart, FieldUse::kRefused, kEmpty},
    {"include", kInResponses, FieldUse::kServed, kEmptyList,
     "message.output_text.logprobs is refused; other values change nothing"},
    {"include_obfuscation", kInStreamOptions, FieldUse::kIgnored, 0, "changes only event padding"},
    {"include_reasoning", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"include_stop_str_in_output", kAnswer, FieldUse::kRefused, kFalse},
    {"include_usage", kInStreamOptions, FieldUse::kServed, kFalse},
    {"index", kInCall, FieldUse::kIgnored, 0, "calls keep the order of the list"},
    {"inference_geo", kInMessages, FieldUse::kIgnored, 0, kOnlyWhere},
    {"input", kInResponses, FieldUse::kServed},
    {"input", kInBlock, FieldUse::kServed, 0, "of a tool_use"},
    {"input_audio", kInPart, FieldUse::kRefused, kEmpty},
    {"input_examples", kInCustomTool, FieldUse::kIgnored, 0, "not part of the prompt"},
    {"input_schema", kInCustomTool, FieldUse::kServed, 0, "absent: a tool without arguments"},
    {"input_video", kInPart, FieldUse::kRefused, kEmpty},
    {"instructions", kInResponses, FieldUse::kServed, kEmptyText},
    {"is_error", kInBlock, FieldUse::kServed, kFalse, "the prompt says that the tool failed"},
    {"json", kInStructured, FieldUse::kServed, kEmptyText, kSchemaNote},
    {"json_object", kInStructured, FieldUse::kServed, kFalse, "any JSON object"},
    {"json_schema", kAnswer, FieldUse::kRefused, kFalse | kEmptyText,
     "send response_format.json_schema"},
    {"json_schema", kInResponseFormat, FieldUse::kServed, kFalse | kEmptyText, "", kInSchema},
    {"keep", kInCacheOptions, FieldUse::kServed},
    {"kv_transfer_params", kAnswer, FieldUse::kRefused, kEmpty},
    {"length_penalty", kAnswer, FieldUse::kIgnored, 0, kNeedsBeams},
    {"logit_bias", kAnswer, FieldUse::kServed, kEmptyList | kEmptyObject, "map or list of pairs"},
    {"logits_processors", kAnswer, FieldUse::kRefused, kEmpty},
    {"logprob_token_ids", kAnswer, FieldUse::kRefused, kEmpty},
    {"logprobs", kInChat, FieldUse::kServed, kFalse | kZero, "true or false"},
    {"logprobs", kInCompletion, FieldUse::kServed, kFalse, "a number"},
    {"logprobs", kInResponses, FieldUse::kRefused, kFalse | kZero, kSendToChats},
    {"logprobs", kInItemPart, FieldUse::kIgnored, 0, kNotShown},
    {"lora", kAnswer, FieldUse::kRefused, kEmpty, "name the adapter in model"},
    {"max_completion_tokens", kAnswer, FieldUse::kServed, kMinusOne},
    {"max_completion_tokens", kInResponses, FieldUse::kRefused, kMinusOne, kSendMaxOutput},
    {"max_output_tokens", kInResponses, FieldUse::kServed},
    {"max_tokens", kAnswer, FieldUse::kServed, kMinusOne},
    {"max_tokens", kInResponses, FieldUse::kRefused, kMinusOne, kSendMaxOutput},
    {"max_tokens", kInMessages, FieldUse::kServed, 0,
     "default 4,096; 0: compute and store the prompt"},
    {"max_tool_calls", kInResponses, FieldUse::kIgnored, 0, "limits only tools that a server runs"},
    {"mcp_servers", kInMessages, FieldUse::kRefused, kEmpty, "the client must call MCP servers"},
    {"media_io_kwargs", kAnswer | kInTokenize, FieldUse::kRefused, kEmpty},
    {"messages", kInChat | kInTokenize, FieldUse::kServed},
    {"messages", kInCompletion, FieldUse::kRefused, kEmpty, kSendToChats},
    {"messages", kInResponses, FieldUse::kRefused, kEmpty, "send input"},
    {"messages", kInMessages, FieldUse::kServed},
    {"metadata", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"metadata", kInResponses, FieldUse::kServed, 0, "returned in the answer"},
    {"metadata", kInMessages, FieldUse::kIgnored, 0, kCallerNote},
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
    {"mode", kInAllowedTools, FieldUse::kServed, 0, "auto or required"},
    {"mode", kInFlatChoice, FieldUse::kServed, 0, "of allowed_tools: auto or required"},
    {"model", kAnswer | kInTokenize | kInDetokenize, FieldUse::kServed, kEmptyText},
    {"model", kInMessages, FieldUse::kServed},
    {"moderation", kAnswer, FieldUse::kRefused, kEmpty},
    {"n", kAnswer, FieldUse::kServed},
    {"n", kInResponses, FieldUse::kRefused, kOne, kOneAnswer},
    {"n_cache_reuse", kAnswer, FieldUse::kIgnored, 0, "restoring does not change the answer"},
    {"n_cmpl", kAnswer, FieldUse::kServed, 0, "same as n"},
    {"n_cmpl", kInResponses, FieldUse::kRefused, kOne, kOneAnswer},
    {"n_discard", kAnswer, FieldUse::kIgnored, 0, kNoShift},
    {"n_indent", kAnswer, FieldUse::kRefused, kZero},
    {"n_keep", kAnswer, FieldUse::kIgnored, 0, kNoShift},
    {"n_predict", kAnswer, FieldUse::kServed, kMinusOne, "same as max_tokens"},
    {"n_predict", kInResponses, FieldUse::kRefused, kMinusOne, kSendMaxOutput},
    {"n_probs", kAnswer, FieldUse::kRefused, kZero, "send logprobs"},
    {"name", kInFunction | kInFlatTool | kInCustomTool, FieldUse::kServed, 0,
     "1 to 128 letters, digits, _ and -"},
    {"name", kInMessage, FieldUse::kIgnored, 0, "Gemma's chats have no names"},
    {"name", kInItem, FieldUse::kServed, 0, "of a function_call"},
    {"name", kInCallFunction | kInChoiceFunction | kInFlatChoice | kInToolChoice,
     FieldUse::kServed},
    {"name", kInTextFormat | kInSchema, FieldUse::kIgnored, 0, kNotShown},
    {"name", kInBlock, FieldUse::kServed, 0, "of a tool_use"},
    {"namespace", kInItem, FieldUse::kRefused, kEmptyText},
    {"output", kInItem, FieldUse::kServed, 0, "of a function_call_output"},
    {"output_config", kInMessages, FieldUse::kServed, kEmptyObject, "", kInOutputConfig},
    {"output_format", kInMessages, FieldUse::kServed, kEmptyObject, "same as output_config.format",
     kInOutputFormat},
    {"output_schema", kInFlatTool, FieldUse::kIgnored, 0, kNotShown},
    {"parallel_tool_calls", kInChat, FieldUse::kServed, kTrue, "false: at most one call"},
    {"parallel_tool_calls", kInCompletion, FieldUse::kIgnored, 0, "no effect without tools"},
    {"parameters", kInFunction | kInFlatTool, FieldUse::kServed, 0,
     "absent: a function without parameters"},
    {"parse_special", kInTokenize, FieldUse::kRefused, kTrue},
    {"parse_tool_calls", kAnswer, FieldUse::kIgnored, 0, "tool_choice decides about calls"},
    {"partial", kInMessage, FieldUse::kRefused, kFalse},
    {"phase", kInItem, FieldUse::kIgnored, 0, kNotShown},
    {"post_sampling_probs", kAnswer, FieldUse::kRefused, kFalse},
    {"prediction", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"prefix", kInMessage, FieldUse::kRefused, kFalse},
    {"presence_penalty", kAnswer, FieldUse::kServed},
    {"preserved_tokens", kAnswer, FieldUse::kIgnored, 0, kNeedsGrammar},
    {"previous_response_id", kInResponses, FieldUse::kRefused, kEmptyText, kNoState},
    {"prewarm", kInCacheOptions, FieldUse::kServed, kFalse},
    {"priority", kAnswer, FieldUse::kIgnored, 0, kOnlyWhen},
    {"priority", kInCacheOptions, FieldUse::kServed},
    {"prompt", kInChat, FieldUse::kRefused, kEmpty, "send messages"},
    {"prompt", kInCompletion | kInTokenize, FieldUse::kServed},
    {"prompt", kInResponses, FieldUse::kRefused, kEmpty, "send instructions and input"},
    {"prompt_cache_breakpoint", kMessages, FieldUse::kServed, kFalse, "", kInBreakpoint},
    {"prompt_cache_key", kAnswer, FieldUse::kServed, 0, "returned in the answer"},
    {"prompt_cache_options", kAnswer, FieldUse::kServed, 0, "", kInCacheOptions},
    {"prompt_cache_retention", kAnswer, FieldUse::kIgnored, 0, "use prompt_cache_options.ttl"},
    {"prompt_embeds", kAnswer | kInPart, FieldUse::kRefused, kEmpty},
    {"prompt_logprobs", kAnswer, FieldUse::kRefused, kFalse,
     "send echo with logprobs to /v1/completions"},
    {"reasoning", kInMessage, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"reasoning", kInResponses, FieldUse::kIgnored, 0, kNoReasoning},
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
    {"response_format", kAnswer, FieldUse::kServed, kEmptyObject, kFormatNote, kInResponseFormat},
    {"response_format", kInResponses, FieldUse::kRefused, kEmpty, kSendTextFormat},
    {"return_mm_kwargs", kAnswer, FieldUse::kIgnored, 0, kOfImages},
    {"return_progress", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"return_prompt_text", kAnswer, FieldUse::kRefused, kFalse},
    {"return_token_ids", kAnswer, FieldUse::kRefused, kFalse},
    {"return_token_offsets", kAnswer, FieldUse::kIgnored, 0, "vLLM ignores it here, too"},
    {"return_token_strs", kInTokenize, FieldUse::kRefused, kFalse},
    {"return_tokens", kAnswer, FieldUse::kRefused, kFalse},
    {"return_tokens_as_token_ids", kAnswer, FieldUse::kRefused, kFalse},
    {"role", kInMessage, FieldUse::kServed},
    {"role", kInItem, FieldUse::kServed},
    {"role", kInTurn, FieldUse::kServed},
    {"routed_experts_prompt_start", kAnswer, FieldUse::kIgnored, 0, "the model has no experts"},
    {"safety_identifier", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"samplers", kAnswer, FieldUse::kRefused, kEmpty | kAllWords,
     "llama.cpp's default order is accepted and ignored", 0,
     "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature"},
    {"schema", kInResponseFormat, FieldUse::kRefused, kEmpty, "put it into json_schema"},
    {"schema", kInTextFormat | kInSchema, FieldUse::kServed},
    {"schema", kInOutputFormat, FieldUse::kServed},
    {"seed", kAnswer, FieldUse::kServed, kMinusOne},
    {"seed", kInMessages, FieldUse::kServed, kMinusOne},
    {"service_tier", kAnswer, FieldUse::kIgnored, 0, kOnlyWhen},
    {"service_tier", kInMessages, FieldUse::kIgnored, 0, kOnlyWhen},
    {"session_id", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"signature", kInBlock, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"skip_special_tokens", kAnswer, FieldUse::kRefused, kTrue},
    {"spaces_between_special_tokens", kAnswer, FieldUse::kIgnored, 0,
     "no effect with skip_special_tokens"},
    {"speculative.n_max", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"speculative.n_min", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"speculative.p_min", kAnswer, FieldUse::kIgnored, 0, kOnlyTime},
    {"speed", kInMessages, FieldUse::kIgnored, 0, kOnlyTime},
    {"sse_ping_interval", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"status", kInItem, FieldUse::kIgnored, 0, kNotShown},
    {"stop", kAnswer, FieldUse::kServed, kEmptyText | kEmptyList | kEmptyTexts},
    {"stop_sequences", kInMessages, FieldUse::kServed, kEmptyList},
    {"stop_token_ids", kAnswer, FieldUse::kServed, kEmptyList},
    {"store", kAnswer, FieldUse::kIgnored, 0, "answers are not stored"},
    {"stream", kAnswer, FieldUse::kServed, kFalse},
    {"stream", kInMessages, FieldUse::kServed, kFalse},
    {"stream_interval", kAnswer, FieldUse::kIgnored, 0, "changes only the size of events"},
    {"stream_options", kAnswer, FieldUse::kServed, kFalse, "", kInStreamOptions},
    {"strict", kInFunction | kInFlatTool | kInCustomTool, FieldUse::kServed, kFalse,
     "true: refuse keywords that cannot be enforced"},
    {"strict", kInTextFormat | kInSchema, FieldUse::kIgnored, 0, "the schema is always obeyed"},
    {"structural_tag", kAnswer | kInStructured, FieldUse::kRefused, kEmpty},
    {"structured_outputs", kAnswer, FieldUse::kServed, kEmptyObject, "", kInStructured},
    {"structured_outputs", kInResponses, FieldUse::kRefused, kEmpty, kSendTextFormat},
    {"suffix", kAnswer, FieldUse::kRefused, kEmpty},
    {"system", kInMessages, FieldUse::kServed, kEmptyText | kEmptyList,
     "a first line x-anthropic-billing-header: ... is removed: it differs between conversations"},
    {"t_max_predict_ms", kAnswer, FieldUse::kRefused, kZero | kMinusOne},
    {"t_max_prompt_ms", kAnswer, FieldUse::kRefused, kZero | kMinusOne},
    {"task", kInMessage, FieldUse::kRefused, kEmpty},
    {"task_budget", kInOutputConfig, FieldUse::kIgnored, 0, "max_tokens limits the answer"},
    {"temperature", kAnswer, FieldUse::kServed},
    {"temperature", kInMessages, FieldUse::kServed},
    {"text", kInPart | kInItemPart, FieldUse::kServed},
    {"text", kInResponses, FieldUse::kServed, kEmptyObject, "", kInText},
    {"text", kInBlock, FieldUse::kServed},
    {"thinking", kInPart, FieldUse::kRefused, kEmpty},
    {"thinking", kInMessages, FieldUse::kIgnored, 0, kNoReasoning},
    {"thinking", kInBlock, FieldUse::kIgnored, 0, kNoReasoningInChat},
    {"thinking_token_budget", kAnswer, FieldUse::kIgnored, 0, kNoReasoning},
    {"thread", kInMessages, FieldUse::kRefused, kEmpty,
     "the server keeps no conversation; send all messages (tool_runner: thread=False)"},
    {"timings_per_token", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"tokens", kInDetokenize, FieldUse::kServed},
    {"tool_call_id", kInMessage, FieldUse::kServed, kEmptyText,
     "required in a tool message, refused in others"},
    {"tool_calls", kInMessage, FieldUse::kServed, kEmptyList,
     "in an assistant message; refused in others", kInCall},
    {"tool_choice", kInChat, FieldUse::kServed, kFalse | kEmptyText, "", kInChoice, "auto"},
    {"tool_choice", kInResponses, FieldUse::kServed, kFalse | kEmptyText, "", kInFlatChoice,
     "auto"},
    {"tool_choice", kInCompletion, FieldUse::kRefused, kEmpty, "send it to /v1/chat/completions", 0,
     "auto none"},
    {"tool_choice", kInMessages, FieldUse::kServed, 0, "", kInToolChoice},
    {"tool_name", kInBlock, FieldUse::kServed, 0, "of a tool_reference"},
    {"tool_use_id", kInBlock, FieldUse::kServed, 0, "of a tool_result"},
    {"tools", kInChat | kInTokenize, FieldUse::kServed, kEmpty, "functions only"},
    {"tools", kInCompletion, FieldUse::kRefused, kEmpty, kSendToChats},
    {"tools", kInMessage, FieldUse::kRefused, kEmpty},
    {"tools", kInAllowedTools, FieldUse::kServed, 0, "", kInChoice},
    {"tools", kInFlatChoice, FieldUse::kServed, 0, "of allowed_tools", kInFlatChoice},
    {"tools", kInMessages, FieldUse::kServed, kEmptyList, "only tools that the client runs"},
    {"toolset_name", kInBlock, FieldUse::kIgnored, 0, "not part of the prompt"},
    {"top_k", kAnswer | kInMessages, FieldUse::kServed, 0, "0 and -1: no limit"},
    {"top_logprobs", kInChat, FieldUse::kServed, kZero, "needs logprobs: true"},
    {"top_logprobs", kInCompletion, FieldUse::kRefused, kZero, "send logprobs as a number"},
    {"top_logprobs", kInResponses, FieldUse::kRefused, kZero, kSendToChats},
    {"top_n_sigma", kAnswer, FieldUse::kRefused, kZero | kMinusOne},
    {"top_p", kAnswer, FieldUse::kServed},
    {"top_p", kInMessages, FieldUse::kServed},
    {"truncate_prompt_tokens", kInCompletion, FieldUse::kServed, 0,
     "only for a prompt of token ids; -1: context minus max_tokens"},
    {"truncate_prompt_tokens", kInChat | kInTokenize, FieldUse::kRefused},
    {"truncation", kInResponses, FieldUse::kIgnored, 0, "a prompt that is too long is refused"},
    {"truncation_side", kInCompletion, FieldUse::kServed, 0, "left: drop the first tokens"},
    {"truncation_side", kInChat, FieldUse::kIgnored, 0, "no effect without truncate_prompt_tokens"},
    {"ttl", kInCacheOptions | kInBreakpoint | kInCacheControl, FieldUse::kServed},
    {"type", kInMessage, FieldUse::kIgnored, 0, "each content part has a type instead"},
    {"type",
     kInPart | kInResponseFormat | kInCacheControl | kInTool | kInTextFormat | kInItem |
         kInItemPart | kInFlatTool | kInBreakpoint | kInCall | kInChoice | kInFlatChoice,
     FieldUse::kServed},
    {"type", kInBlock | kInCustomTool | kInOutputFormat | kInToolChoice, FieldUse::kServed},
    {"typical_p", kAnswer, FieldUse::kRefused, kOne},
    {"use_beam_search", kAnswer, FieldUse::kRefused, kFalse},
    {"user", kAnswer, FieldUse::kIgnored, 0, kCallerNote},
    {"user_profile_id", kInMessages, FieldUse::kIgnored, 0, kCallerNote},
    {"uuid", kInPart, FieldUse::kIgnored, 0, kOfImages},
    {"verbose", kAnswer, FieldUse::kIgnored, 0, kNoPart},
    {"verbosity", kAnswer | kInText, FieldUse::kIgnored, 0,
     "Gemma's chats have no verbosity setting"},
    {"video_embeds", kInPart, FieldUse::kRefused, kEmpty},
    {"video_url", kInPart, FieldUse::kRefused, kEmpty},
    {"vllm_xargs", kAnswer, FieldUse::kRefused, kEmpty},
    {"watermarking", kAnswer, FieldUse::kRefused, kFalse},
    {"web_search_options", kAnswer, FieldUse::kRefused, kFalse | kEmptyText | kEmptyList},
    {"with_pieces", kInTokenize, FieldUse::kRefused, kFalse},
    {"workspace_id", kInMessages, FieldUse::kIgnored, 0, kCallerNote},
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

const OpenAiField* FindOpenAiField(absl::string_view name, uint64_t place) {
  const auto is_before = [](const OpenAiField& row, absl::string_view other) {
    return row.name < other;
  };
  const OpenAiField* row = std::lower_bound(kFields, kFields + kRows, name, is_before);
  bool is_of_answers = false;
  const OpenAiField* of_chats = nullptr;
  for (; row != kFields + kRows && row->name == name; ++row) {
    if ((row->places & place) != 0) return row;
    is_of_answers = is_of_answers || (row->places & kAnswer) != 0;
    if ((row->places & kInChat) != 0) of_chats = row;
  }
  if (place == kInResponses) return of_chats;
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

bool CountsAsAbsent(uint64_t place, absl::string_view name, JsonValue value) {
  const OpenAiField* const field = FindOpenAiField(name, place);
  return field == nullptr || AsksForNothing(*field, value);
}

absl::string_view PathOfPlace(uint64_t place) {
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
      {kInStructured, "structured_outputs."},
      {kInText, "text."},
      {kInTextFormat, "text.format."},
      {kInItem, "input[]."},
      {kInItemPart, "input[].content[]."},
      {kInFlatTool, "tools[]."},
      {kInTurn, "messages[]."},
      {kInBlock, "messages[].content[]."},
      {kInCustomTool, "tools[]."},
      {kInOutputConfig, "output_config."},
      {kInOutputFormat, "output_config.format."},
      {kInToolChoice, "tool_choice."},
      {kInSchema, "response_format.json_schema."},
      {kInCall, "messages[].tool_calls[]."},
      {kInCallFunction, "messages[].tool_calls[].function."},
      {kInChoice, "tool_choice."},
      {kInChoiceFunction, "tool_choice.function."},
      {kInAllowedTools, "tool_choice.allowed_tools."},
      {kInFlatChoice, "tool_choice."}};
  for (const auto& [its, path] : kPaths) {
    if (its == place) return path;
  }
  return "";
}

void UnknownFields::Add(uint64_t place, absl::string_view name) {
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

absl::Status CheckOpenAiFields(JsonValue object, uint64_t place, UnknownFields* unknown) {
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
    const bool is_checked_list = value.is_list() && row->use == FieldUse::kServed;
    if (row->inner != 0 && (value.is_object() || is_checked_list)) {
      absl::Status status = CheckOpenAiFields(value, row->inner, unknown);
      for (const JsonValue one : value.elements()) {
        status.Update(CheckOpenAiFields(one, row->inner, unknown));
      }
      if (!status.ok()) return status;
    } else if (row->use == FieldUse::kRefused && !AsksForNothing(*row, value)) {
      return RefuseField(value, row->note);
    }
  }
  return absl::OkStatus();
}

}  // namespace hearth
