// Parses requests of OpenAI's Responses API into requests of hearth.v1.Inference.
//
// The prompt has the text that the same conversation has as a chat completion: the tools, then
// `instructions` as a system message, then the items of `input`. Function calls join the assistant
// message in front of them, or begin one; reasoning items are dropped. Nothing is stored, so an
// item must be in the request itself: its id is not read. Fields for sampling and caching are the
// fields of chat completions. Thread safety: pure functions.
#ifndef HEARTH_SERVICES_OPENAI_RESPONSES_REQUEST_H_
#define HEARTH_SERVICES_OPENAI_RESPONSES_REQUEST_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "services/openai/openai_request.h"
#include "services/serving/json_reader.h"

namespace hearth {

// Maximum size of the fields that a response repeats, all together. Three events of a stream have
// them. Fields beyond the limit are replaced by their defaults.
inline constexpr size_t kMaxRepeatedBytes = size_t{64} << 10;

// Parses the body of /v1/responses. An error begins with the field's path. `limits` apply to JSON
// that the body has as text.
absl::StatusOr<OpenAiRequest> ParseResponses(JsonValue body, const ParseTerms& terms = {});

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_RESPONSES_REQUEST_H_
