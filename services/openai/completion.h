// Completion: computes the answer to one request of OpenAI's API. Each prompt of the request
// becomes one request to the Generator, whose events a GenerationSink receives.
//
// An error before the first event becomes an HTTP error; a later error becomes the last event of
// the stream.
// Thread safety: threads of the pool, the engine and the HTTP server call it.
// Ownership: shared by the jobs of its prompts and the engine's callbacks.
// Invariants: (1) if the caller disconnects or a prompt fails, all prompts are cancelled at once;
// (2) after that, Admission and the pool are not used.
#ifndef HEARTH_SERVICES_OPENAI_COMPLETION_H_
#define HEARTH_SERVICES_OPENAI_COMPLETION_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "services/inference/calls/generator.h"
#include "services/openai/openai_request.h"
#include "services/serving/calls/admission.h"
#include "services/serving/http/http_server.h"

namespace hearth {

// Parameters of a completion that are not in the parsed request.
struct CompletionTerms {
  std::string id;     // id of the response: "chatcmpl-..."
  std::string model;  // the model name that the request gave
  Credentials credentials;
  std::string request_id;
  std::string adapter;
  HttpHeaders headers;  // headers to add to the HTTP response
};

void Complete(Generator* generator, Admission* admission, OpenAiRequest request,
              CompletionTerms terms, std::shared_ptr<HttpAnswer> answer);

// Returns the HTTP status of an error: 400, 401, 403, 404, 429 or 503, or 500 for a fault of the
// server.
int HttpStatusOf(absl::StatusCode code);
// Sends an HTTP error response: the status of HttpStatusOf, and a JSON body with the message.
void SendError(const absl::Status& status, HttpHeaders headers, HttpAnswer* answer);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_COMPLETION_H_
