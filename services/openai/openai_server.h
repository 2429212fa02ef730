// OpenAiServer: serves a worker's model over HTTP, as clients of OpenAI's API know it.
//
// Its requests go to the Generator, as those over gRPC do (completion.h). A web page of
// another site must not reach a model on its reader's machine: HttpServer checks Host, the door
// checks that Origin is the same or in the list of origins, and that a body is JSON. All of this
// and the token are checked on a request's headers, before its body is read. Thread safety: made
// and destroyed by one thread; HttpServer calls it from several. Ownership: the objects that the
// options point to must outlive the door. Invariant: once it is destroyed, no request of its is
// counted by Admission; jobs of the Generator's pool may be left.
#ifndef HEARTH_SERVICES_OPENAI_OPENAI_SERVER_H_
#define HEARTH_SERVICES_OPENAI_OPENAI_SERVER_H_

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "services/inference/calls/generator.h"
#include "services/openai/openai_request.h"
#include "services/serving/calls/admission.h"
#include "services/serving/http/http_server.h"
#include "services/serving/json_value.h"
#include "worker/text/tokenizer.h"

namespace hearth {

struct OpenAiOptions {
  HttpServer::Options http;
  Generator* generator = nullptr;
  Admission* admission = nullptr;
  std::string model;  // the name that callers use
  std::string version;
  std::vector<std::string> origins;  // pages of these sites may call; "*": all
};

class OpenAiServer {
 public:
  static constexpr size_t kMaxLoggedFields = 256;

  static absl::StatusOr<std::unique_ptr<OpenAiServer>> Open(OpenAiOptions options);

  const std::string& address() const { return server_->address(); }
  // Answers that are under way may end; /health says that no more are taken. A body that is still
  // being parsed is refused with 503.
  void Drain();
  // HttpServer::held_bytes.
  uint64_t held_bytes() const { return server_->held_bytes(); }

 private:
  explicit OpenAiServer(OpenAiOptions options);
  using Answer = std::shared_ptr<HttpAnswer>;
  HttpVerdict CheckHead(const HttpRequest& head) const;
  // Empty where callers are not asked for tokens.
  Credentials CredentialsOf(const HttpRequest& request) const;
  // Whether pages of this origin are listed as callers.
  bool IsListed(const std::string& origin) const;
  // Headers of all answers to the request.
  HttpHeaders OriginHeaders(const HttpRequest& head) const;
  void Handle(const HttpRequest& request, const Answer& answer);
  void StartCompletion(const HttpRequest& request, bool is_chat, const Answer& answer);
  // `hold` counts the document.
  absl::StatusOr<JsonDocument> ReadBody(const HttpRequest& request, HttpHold* hold) const;
  using BodyParser = absl::FunctionRef<absl::StatusOr<OpenAiRequest>(JsonValue body)>;
  // The answer holds what the request takes.
  absl::StatusOr<OpenAiRequest> ReadRequest(const HttpRequest& request, BodyParser parse,
                                            const Answer& answer) const;
  // The adapter of that name; empty: the model itself. kNotFound: there is no such model.
  absl::StatusOr<std::string> AdapterOf(const std::string& model) const;
  void Tokenize(const HttpRequest& request, const Answer& answer);
  void Detokenize(const HttpRequest& request, const Answer& answer) const;
  // Lists unknown fields in a header of the answer, and each once in the log. Names come from
  // callers: at most kMaxLoggedFields of them are logged.
  void ReportUnknown(const UnknownFields& unknown, HttpHeaders* headers) const
      ABSL_LOCKS_EXCLUDED(unknown_mutex_);
  Json TokenizerInfo() const;
  std::string Models(absl::string_view only) const;

  const OpenAiOptions options_;
  Identities* const identities_;      // null: callers are not asked for tokens
  const Tokenizer* const tokenizer_;  // null: no text
  const uint32_t context_tokens_;
  const int64_t start_;
  mutable absl::Mutex unknown_mutex_;
  mutable std::set<std::string> unknown_ ABSL_GUARDED_BY(unknown_mutex_);  // that were logged
  std::atomic<bool> draining_{false};
  std::unique_ptr<HttpServer> server_;  // last: it calls the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_SERVER_H_
