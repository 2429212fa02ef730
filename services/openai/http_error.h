// Errors over HTTP: the status of an error, and its body in the form of OpenAI's API.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_OPENAI_HTTP_ERROR_H_
#define HEARTH_SERVICES_OPENAI_HTTP_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/serving/http/http_server.h"

namespace hearth {

// Returns the HTTP status of an error: 400, 401, 403, 404, 429 or 503, or 500 for a fault of the
// server.
int HttpStatusOf(absl::StatusCode code);

// Names of the body's fields that set a field of GenerateRequest. Errors give these names.
struct SentNames {
  const char* max_new_tokens = "max_tokens";
  const char* n = "n";
  const char* bad_token_ids = "bad_token_ids";
  const char* messages = "messages";
  const char* stop = "stop";
};

// Returns the message of an error, with the names of the body's fields.
std::string ErrorMessage(const absl::Status& status, const SentNames& sent);
// Returns the body of an error in the form of OpenAI's API.
std::string OpenAiErrorBody(const absl::Status& status, const SentNames& sent);
std::string OpenAiErrorBody(const absl::Status& status);

// Sends an HTTP error response with this body, and the status of HttpStatusOf.
void SendError(const absl::Status& status, HttpHeaders headers, std::string body,
               HttpAnswer* answer);
// Sends an HTTP error response in the form of OpenAI's API.
void SendError(const absl::Status& status, HttpHeaders headers, HttpAnswer* answer);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_HTTP_ERROR_H_
