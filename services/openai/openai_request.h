// Parses requests of OpenAI's API into requests of hearth.v1.Inference.
//
// openai_fields.h lists the fields that are supported, ignored and refused, and the no-op values
// that count as absent. Unknown fields are ignored and reported. The limits of the gRPC API (stop
// strings, listed tokens, messages of a chat) are checked while parsing. tools.h reads tools. The
// field `prompt_cache_breakpoint` of a content part sets a breakpoint. If a chat has no breakpoint
// and `prompt_cache_options.mode` is not `explicit`, the end of the system text is a breakpoint.
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_
#define HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"
#include "services/openai/http_error.h"
#include "services/openai/openai_fields.h"
#include "services/openai/tools.h"
#include "services/serving/json_reader.h"

namespace hearth {

inline constexpr size_t kMaxPrompts = 64;
// Longest prompt_cache_key. Small, because each event of a stream repeats the key.
inline constexpr size_t kMaxCacheKeyBytes = 1024;

struct OpenAiRequest {
  v1::GenerateRequest common;  // the fields that apply to all prompts; its `prompt` is unset
  std::vector<v1::PromptInput> prompts;  // the prompts; at least one
  SentNames sent;
  std::string model;  // requested model name; empty: not given
  bool is_chat = false;
  bool stream = false;
  bool include_usage = false;  // for streams only: send the token usage in a chunk before the end
  bool logprobs = false;
  bool echo = false;  // for completions only: the response repeats the prompt before the answer
  // For completions only: max_tokens is 0, so one token is generated but not sent.
  bool only_echo = false;
  bool explain = false;   // `usage.hearth_cache` says what the store had of the prompt
  bool prewarm = false;   // compute and store the prompts, but generate no answer
  std::string cache_key;  // repeated in the response, otherwise unused
  // words that are never generated; the caller converts them to token ids
  std::vector<std::string> bad_words;
  AnswerRules answer;  // allowed calls and grammar of the answer; `common` has the grammar, too
  size_t earlier_calls = 0;  // number of tool calls in the messages of the chat
  // for the Responses API only: JSON of fields that the response repeats, each after a comma
  std::string repeated;
  UnknownFields unknown;

  uint64_t bytes() const;  // memory of the messages, in bytes
};

// Parses the JSON body of a request. kInvalidArgument: the body is not an object, or exceeds a
// limit of json_reader.h. kUnavailable: `hold` (JsonLimits::hold) refused to count the memory.
absl::StatusOr<JsonDocument> ParseBody(absl::string_view body,
                                       std::function<bool(uint64_t bytes)> hold = nullptr);
// The limits of a JSON schema that the body contains as text, and the model's own template.
struct ParseTerms : JsonLimits {
  const TemplateTools* own_template = nullptr;  // null: the prompt's text lists tools and calls
};
// Parse the bodies of /v1/chat/completions and of /v1/completions. An error begins with the field's
// path. A list of more than `context_tokens` token ids is refused before it is read.
absl::StatusOr<OpenAiRequest> ParseChat(JsonValue body, const ParseTerms& terms = {});
absl::StatusOr<OpenAiRequest> ParseCompletion(JsonValue body, uint32_t context_tokens = UINT32_MAX,
                                              const ParseTerms& terms = {});
// Parses the body of /tokenize: the messages of a chat, or one prompt. Sets only the prompt, the
// model and the unknown fields of the result.
absl::StatusOr<OpenAiRequest> ParseTokenize(JsonValue body, uint32_t context_tokens = UINT32_MAX,
                                            const ParseTerms& terms = {});
// Parses a time to live, such as "30m", "1h", "90s" or a number of seconds, into seconds.
absl::StatusOr<uint32_t> ParseCacheTtl(JsonValue ttl);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_
