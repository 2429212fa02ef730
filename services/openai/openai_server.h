// OpenAiServer: serves a worker's model over HTTP with OpenAI's API.
//
// Requests go to the Generator, like requests over gRPC (completion.h). A web page of another site
// must not reach a model on the reader's machine. So HttpServer checks Host, and this class checks
// that Origin is the same site or listed in `origins`, and that a body is JSON. These checks and
// the token check use the headers only, before the body is read.
// Thread safety: one thread creates and destroys the object; HttpServer calls it from several
// threads.
// Ownership: the objects that the options point to must outlive it.
// Invariant: after destruction Admission counts no request of this server; jobs may remain in the
// Generator's pool.
#ifndef HEARTH_SERVICES_OPENAI_OPENAI_SERVER_H_
#define HEARTH_SERVICES_OPENAI_OPENAI_SERVER_H_

#include <atomic>
#include <functional>
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
  std::string model;       // the model's name in requests and responses
  std::string model_note;  // a sentence about the model for users; may be empty
  std::string version;
  // origins whose web pages may call this server; "*": all origins
  std::vector<std::string> origins;
  // Returns why the worker cannot compute, which /health answers with 503; "" if it can. May be
  // null.
  std::function<std::string()> failure;
};

struct HttpApi;

class OpenAiServer {
 public:
  static constexpr size_t kMaxLoggedFields = 256;

  static absl::StatusOr<std::unique_ptr<OpenAiServer>> Open(OpenAiOptions options);

  const std::string& address() const { return server_->address(); }
  // Lets running requests finish, and refuses new requests with 503. Also refuses /health, and a
  // request whose body is still being parsed.
  void Drain();
  // Returns the bytes of memory that requests and responses hold; see HttpServer::held_bytes.
  uint64_t held_bytes() const { return server_->held_bytes(); }

 private:
  explicit OpenAiServer(OpenAiOptions options);
  using Answer = std::shared_ptr<HttpAnswer>;
  HttpVerdict CheckHead(const HttpRequest& head) const;
  // Returns the identity of the caller; empty if no identities are configured.
  Credentials CredentialsOf(const HttpRequest& request) const;
  // Returns whether this origin is in `origins`.
  bool IsListed(const std::string& origin) const;
  // Gives the request its id, if it has no valid one. Returns the headers for every response to
  // this request: the id, and those of CORS.
  HttpHeaders AnswerHeaders(HttpRequest* head) const;
  void Handle(const HttpRequest& request, const Answer& answer);
  // Starts the answer to a request of an API that generates answers.
  void Generate(const HttpApi& api, const HttpRequest& request, const Answer& answer);
  // Parses the body. `hold` counts the memory of the parsed document.
  absl::StatusOr<JsonDocument> ReadBody(const HttpRequest& request, HttpHold* hold) const;
  using BodyParser =
      absl::FunctionRef<absl::StatusOr<OpenAiRequest>(JsonValue body, const ParseTerms& terms)>;
  // Parses the body with `parse`. `answer` counts the memory of the parsed request.
  absl::StatusOr<OpenAiRequest> ReadRequest(const HttpRequest& request, BodyParser parse,
                                            const Answer& answer) const;
  // Returns the LoRA adapter with this name, or "" if the name is the model's. kNotFound: no such
  // model or adapter.
  absl::StatusOr<std::string> AdapterOf(const std::string& model) const;
  void Tokenize(const HttpRequest& request, const Answer& answer);
  void Detokenize(const HttpRequest& request, const Answer& answer) const;
  // Lists the unknown fields in a response header, and logs each name once. Clients choose the
  // names, so at most kMaxLoggedFields different names are logged.
  void ReportUnknown(const UnknownFields& unknown, HttpHeaders* headers) const
      ABSL_LOCKS_EXCLUDED(unknown_mutex_);
  Json TokenizerInfo() const;
  std::string Models(absl::string_view only) const;

  const OpenAiOptions options_;
  Identities* const identities_;      // null: access tokens are not checked
  const Tokenizer* const tokenizer_;  // null: the model has no tokenizer
  const uint32_t context_tokens_;
  const int64_t start_;
  mutable absl::Mutex unknown_mutex_;
  // names of unknown fields that were already logged
  mutable std::set<std::string> unknown_ ABSL_GUARDED_BY(unknown_mutex_);
  std::atomic<bool> draining_{false};
  std::unique_ptr<HttpServer> server_;  // declared last: its threads use the members above
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_SERVER_H_
