// Parses requests of Anthropic's Messages API into requests of hearth.v1.Inference.
//
// The prompt of a request equals the prompt of the same chat of OpenAI's API: the tools, the system
// text, then the messages. `cache_control` of a tool, of a block or of the body is a breakpoint.
// The rows of openai_fields.h for the Messages API list all fields. Thread safety: pure functions.
#ifndef HEARTH_SERVICES_OPENAI_MESSAGES_REQUEST_H_
#define HEARTH_SERVICES_OPENAI_MESSAGES_REQUEST_H_

#include "absl/status/statusor.h"
#include "services/openai/openai_request.h"
#include "services/serving/json_reader.h"

namespace hearth {

// Parses the body of /v1/messages. kInvalidArgument begins with the path of the wrong field.
absl::StatusOr<OpenAiRequest> ParseMessages(JsonValue body, const ParseTerms& terms = {});
// Parses the body of /v1/messages/count_tokens, which has the fields of /v1/messages. The last
// message may be the assistant's.
absl::StatusOr<OpenAiRequest> ParseCountTokens(JsonValue body, const ParseTerms& terms = {});

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_MESSAGES_REQUEST_H_
