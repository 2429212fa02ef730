// Completion: computes the answer to one request of OpenAI's API. Each prompt of the request
// becomes one request to the Generator, whose events a GenerationSink receives. An ApiFormat writes
// the response.
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
#include "services/openai/api_format.h"
#include "services/openai/openai_request.h"
#include "services/serving/calls/admission.h"
#include "services/serving/http/http_server.h"

namespace hearth {

// Parameters of a completion that are not in the parsed request.
struct CompletionTerms {
  std::unique_ptr<ApiFormat> format;  // writes the response
  Credentials credentials;
  CallIds ids;
  std::string adapter;
  HttpHeaders headers;  // headers to add to the HTTP response
};

void Complete(Generator* generator, Admission* admission, OpenAiRequest request,
              CompletionTerms terms, std::shared_ptr<HttpAnswer> answer);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_COMPLETION_H_
