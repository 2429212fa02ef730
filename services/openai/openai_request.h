// Reads the requests of OpenAI's API into those of hearth.v1.Inference.
//
// openai_fields.h says which fields are served, ignored and refused, and which values ask for
// nothing; unknown fields are ignored and listed. Limits are those of the gRPC API (stop strings,
// listed tokens, messages of a chat), and are checked while reading. Cache words: a part's
// prompt_cache_breakpoint is a breakpoint; where a chat has none and its prompt_cache_options do
// not say `explicit`, the end of the system text is one.
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
// It is in each event of a stream.
inline constexpr size_t kMaxCacheKeyBytes = 1024;

struct OpenAiRequest {
  v1::GenerateRequest common;            // of all prompts; has none itself
  std::vector<v1::PromptInput> prompts;  // one or more
  std::string model;                     // empty: not said
  bool is_chat = false;
  bool stream = false;
  bool include_usage = false;  // of a stream, in a chunk before its end
  bool logprobs = false;
  bool echo = false;       // of completions
  bool only_echo = false;  // of completions: max_tokens is 0; one token is drawn and left out
  bool prewarm = false;    // the prompts are computed and kept, nothing is generated
  std::string cache_key;   // given back; has no other use
  std::vector<std::string> bad_words;  // never drawn; to be made token ids by the caller
  UnknownFields unknown;

  uint64_t bytes() const;  // that the messages hold
};

// JSON of a request's body. kInvalidArgument: it is no object, or over a limit of json_reader.h;
// kUnavailable: `hold` refused the memory (JsonLimits::hold).
absl::StatusOr<JsonDocument> ParseBody(absl::string_view body,
                                       std::function<bool(uint64_t bytes)> hold = nullptr);
// The body of /v1/chat/completions, /v1/completions. An error begins with the field's path. A list
// of more token ids than `context_tokens` is refused before it is read.
absl::StatusOr<OpenAiRequest> ParseChat(JsonValue body);
absl::StatusOr<OpenAiRequest> ParseCompletion(JsonValue body, uint32_t context_tokens = UINT32_MAX);
// The body of /tokenize: a chat's messages, or one prompt. Only the prompt, the model
// and the unknown fields of the result are set.
absl::StatusOr<OpenAiRequest> ParseTokenize(JsonValue body, uint32_t context_tokens = UINT32_MAX);
// "30m", "1h", "90s" or a number of seconds.
absl::StatusOr<uint32_t> ParseCacheTtl(JsonValue ttl);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_
