// Completion: answers one request of OpenAI's API by calls of hearth.v1.Inference in this process.
//
// Each prompt is a Generate call (a Prefill call where it only warms the cache), so that the same
// admission, limits and cancelling hold as for callers over gRPC. A refusal before the first
// message is an HTTP error; later it is the last event of the stream.
// Thread safety: gRPC's threads call it, of several prompts at a time.
// Ownership: keeps itself until its last call is done.
// Invariant: a caller who hangs up cancels all calls at once.
#ifndef HEARTH_SERVICES_OPENAI_COMPLETION_H_
#define HEARTH_SERVICES_OPENAI_COMPLETION_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/inference.grpc.pb.h"
#include "services/openai/openai_request.h"
#include "services/openai/token_log.h"
#include "services/serving/http/http_server.h"

namespace hearth {

// What a completion says of itself and its tokens.
struct CompletionTerms {
  std::string id;     // "chatcmpl-..."
  std::string model;  // as the caller named it
  std::string token;  // the caller's, checked; empty: none
  std::string request_id;
  std::string adapter;
  TokenBytes token_bytes;
  HttpHeaders headers;  // of the answer, besides its own
};

void Complete(v1::Inference::StubInterface* stub, OpenAiRequest request, CompletionTerms terms,
              std::shared_ptr<HttpAnswer> answer);

// Only 400, 401, 403, 404, 429, 503 and, for a fault of the server, 500.
int HttpStatusOf(absl::StatusCode code);
// The answer to a call that failed: status, body, and when to try again.
void SendError(const absl::Status& status, uint32_t retry_after_ms, const HttpHeaders& headers,
               HttpAnswer* answer);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_COMPLETION_H_
