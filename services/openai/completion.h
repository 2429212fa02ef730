// Completion: the answer to one request of OpenAI's API, in which each prompt is a request of the
// Generator's: a GenerationSink takes the answer to one prompt.
//
// A refusal before the first event is an HTTP error; later it is the last event of the stream.
// Thread safety: called by threads of the pool, the engine and the HTTP server.
// Ownership: kept by the jobs of its prompts and the engine's callbacks.
// Invariants: (1) a caller who hangs up, and the first error, cancel all prompts at once; (2) after
// that, neither Admission nor the pool is used.
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

// What a completion says of itself and its tokens.
struct CompletionTerms {
  std::string id;     // "chatcmpl-..."
  std::string model;  // as the caller named it
  Credentials credentials;
  std::string request_id;
  std::string adapter;
  HttpHeaders headers;  // of the answer, besides its own
};

void Complete(Generator* generator, Admission* admission, OpenAiRequest request,
              CompletionTerms terms, std::shared_ptr<HttpAnswer> answer);

// Only 400, 401, 403, 404, 429, 503 and, for a fault of the server, 500.
int HttpStatusOf(absl::StatusCode code);
// The answer to a call that failed: status and body.
void SendError(const absl::Status& status, HttpHeaders headers, HttpAnswer* answer);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_COMPLETION_H_
