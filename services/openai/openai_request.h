// Reads the requests of OpenAI's API into those of hearth.v1.Inference.
//
// Fields that nobody here knows are ignored; known ones that this server lacks are refused by name,
// so that nobody takes an answer for something that it is not. Cache words: a part's
// prompt_cache_breakpoint is a breakpoint; where a chat has none and its prompt_cache_options do
// not say `explicit`, the end of the system text is one.
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_
#define HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "proto/inference.pb.h"

namespace hearth {

struct OpenAiRequest {
  std::vector<v1::GenerateRequest> generations;  // one a prompt
  std::string model;                             // empty: not said
  bool is_chat = false;
  bool stream = false;
  bool include_usage = false;  // of a stream, in a chunk before its end
  bool logprobs = false;
  bool echo = false;                 // of completions
  bool prewarm = false;              // the prompts are computed and kept, nothing is generated
  uint32_t ttl_s = 0;                // of what is kept; 0: the store's default
  std::string cache_key;             // given back, and read by nobody
  std::vector<std::string> prompts;  // with echo: those that are text
};

// Bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::json& value);
// JSON of a request's body. kInvalidArgument: no object, nested deeper than any request is.
absl::StatusOr<nlohmann::json> ParseBody(const std::string& body);
// The body of /v1/chat/completions, /v1/completions. An error begins with the field's name.
absl::StatusOr<OpenAiRequest> ParseChat(const nlohmann::json& body);
absl::StatusOr<OpenAiRequest> ParseCompletion(const nlohmann::json& body);
// "30m", "1h", "90s" or a number of seconds. `name`: of the field, for errors.
absl::StatusOr<uint32_t> ParseCacheTtl(const nlohmann::json& ttl, const char* name = "ttl");

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_REQUEST_H_
