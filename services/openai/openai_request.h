// Parses requests of OpenAI's API into requests of hearth.v1.Inference.
//
// openai_fields.h lists the fields that are served, ignored and refused, and the values that count
// as absent. Unknown fields are ignored and reported. The limits are those of the gRPC API (stop
// strings, listed tokens, messages of a chat) and are checked while parsing.
// Cache fields: `prompt_cache_breakpoint` of a part sets a breakpoint. If a chat has no breakpoint
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
#include "services/openai/openai_fields.h"
#include "services/serving/json_reader.h"

namespace hearth {

inline constexpr size_t kMaxPrompts = 64;
// Each event of a stream repeats the key.
inline constexpr size_t kMaxCacheKeyBytes = 1024;

struct OpenAiRequest {
  v1::GenerateRequest common;            // applies to all prompts; its own prompt is unset
  std::vector<v1::PromptInput> prompts;  // one or more
  std::string model;                     // empty: not given
  bool is_chat = false;
  bool stream = false;
  bool include_usage = false;  // stream only: send the usage in a chunk before the end
  bool logprobs = false;
  bool echo = false;  // completions only
  // completions only: max_tokens is 0, so one token is generated and left out
  bool only_echo = false;
  bool prewarm = false;                // compute and store the prompts, generate nothing
  std::string cache_key;               // returned in the answer, otherwise unused
  std::vector<std::string> bad_words;  // never sampled; the caller converts them to token ids
  UnknownFields unknown;

  uint64_t bytes() const;  // memory of the messages
};

// Parses the JSON body of a request. kInvalidArgument: not an object, or over a limit of
// json_reader.h. kUnavailable: `hold` refused the memory (JsonLimits::hold).
absl::StatusOr<JsonDocument> ParseBody(absl::string_view body,
                                       std::function<bool(uint64_t bytes)> hold = nullptr);
// Parse the body of /v1/chat/completions and of /v1/completions. An error begins with the field's
// path. A list of more than `context_tokens` token ids is refused before it is read.
absl::StatusOr<OpenAiRequest> ParseChat(JsonValue body);
absl::StatusOr<OpenAiRequest> ParseCompletion(JsonValue body, uint32_t context_tokens = UINT32_MAX);
// Parses the body of /tokenize: the messages of a chat, or one prompt. Sets only the prompt, the
// model and the unknown fields of the result.
absl::StatusOr<OpenAiRequest> ParseTokenize(JsonValue body, uint32_t context_tokens = UINT32_MAX);
// Parses "30m", "1h", "90s" or a number of seconds.
absl::StatusOr<uint32_t> ParseCacheTtl(JsonValue ttl);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_
