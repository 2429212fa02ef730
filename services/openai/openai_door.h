// OpenAiDoor: serves a worker's model over HTTP, as clients of OpenAI's API know it.
//
// Requests become calls of hearth.v1.Inference in this process (completion.h). A web page of
// another site must not reach a model on its reader's machine: HttpServer checks Host, the door
// checks that Origin is the same or in the list of origins, and that a body is JSON. All of this
// and the token are checked on a request's headers, before its body is read. Thread safety: made
// and destroyed by one thread; HttpServer calls it from several. Ownership: the objects that the
// options point to must outlive the door; the channel's server must be shut down before it.
#ifndef HEARTH_SERVICES_OPENAI_OPENAI_DOOR_H_
#define HEARTH_SERVICES_OPENAI_OPENAI_DOOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "proto/inference.grpc.pb.h"
#include "services/openai/completion.h"
#include "services/openai/openai_request.h"
#include "services/openai/unknown_field_log.h"
#include "services/serving/http/http_server.h"
#include "services/serving/json_value.h"
#include "services/serving/server/serving.h"
#include "worker/text/tokenizer.h"

namespace hearth {

struct OpenAiOptions {
  HttpServer::Options http;
  std::shared_ptr<grpc::Channel> channel;  // to the worker's own server
  std::string model;                       // the name that callers use
  std::vector<std::string> adapters;       // which are models, too
  std::string version;
  uint32_t context_tokens = 0;
  const Tokenizer* tokenizer = nullptr;  // null: no text
  std::vector<std::string> origins;      // pages of these sites may call; "*": all
  // Checks a token; empty: the caller sent none. kUnauthenticated, or whether it proves an
  // identity. Null: there are no identities, and a token is ignored.
  std::function<absl::StatusOr<bool>(const std::string& token)> check;
};

class OpenAiDoor final : public SideDoor {
 public:
  static absl::StatusOr<std::unique_ptr<OpenAiDoor>> Open(OpenAiOptions options);

  const std::string& address() const { return server_->address(); }
  // Answers that are under way may end; /health says that no more are taken. No call of the channel
  // begins after this has returned. A body that is still being parsed is refused with 503.
  void Drain() override ABSL_LOCKS_EXCLUDED(starts_mutex_);
  // HttpServer::held_bytes.
  uint64_t held_bytes() const { return server_->held_bytes(); }

 private:
  explicit OpenAiDoor(OpenAiOptions options);
  using Answer = std::shared_ptr<HttpAnswer>;
  // Runs `start`, which begins calls of the channel. kUnavailable: the server drains; not run.
  absl::Status StartCalls(const std::function<void()>& start) ABSL_LOCKS_EXCLUDED(starts_mutex_);
  HttpVerdict CheckHead(const HttpRequest& head) const;
  // The token for calls; empty where there are no identities.
  std::string CallTokenOf(const HttpRequest& request) const;
  // The answer's headers for a page of another site that may call. Nullopt: it may not.
  std::optional<HttpHeaders> OriginHeaders(const HttpRequest& head) const;
  void Handle(const HttpRequest& request, const Answer& answer);
  void StartCompletion(const HttpRequest& request, bool is_chat, HttpHeaders headers,
                       const Answer& answer);
  // `hold` counts the document.
  absl::StatusOr<JsonDocument> ReadBody(const HttpRequest& request, HttpHold* hold) const;
  using BodyParser = absl::FunctionRef<absl::StatusOr<OpenAiRequest>(JsonValue body)>;
  // The answer holds what the request takes.
  absl::StatusOr<OpenAiRequest> ReadRequest(const HttpRequest& request, BodyParser parse,
                                            const Answer& answer) const;
  // The adapter of that name; empty: the model itself. kNotFound: there is no such model.
  absl::StatusOr<std::string> AdapterOf(const std::string& model) const;
  void Tokenize(const HttpRequest& request, HttpHeaders headers, const Answer& answer);
  void Detokenize(const HttpRequest& request, HttpHeaders headers, const Answer& answer) const;
  // Lists unknown fields in a header of the answer, and each once in the log.
  void NoteUnknown(const UnknownFields& unknown, HttpHeaders* headers) const;
  Json TokenizerInfo() const;
  std::string Models(absl::string_view only) const;

  const OpenAiOptions options_;
  const int64_t start_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  mutable UnknownFieldLog unknown_log_;
  // Held shared while calls begin. If a call begins at an in-process channel whose server was shut
  // down, gRPC 1.51 calls a null function.
  absl::Mutex starts_mutex_;
  std::atomic<bool> draining_{false};   // set under starts_mutex_
  std::unique_ptr<HttpServer> server_;  // last: it calls the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_DOOR_H_
