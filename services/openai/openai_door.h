// OpenAiDoor: serves a worker's model over HTTP, as clients of OpenAI's API know it.
//
// Requests become calls of hearth.v1.Inference in this process (completion.h). A web page of
// somebody else's must not reach a model on its reader's machine: Host must be a name of this
// server's (HostRule), Origin the same or in the list of origins, and a body JSON.
// Thread safety: made and destroyed by one thread. Ownership: what the options point to must
// outlive the door; the channel's server must be shut down before it.
#ifndef HEARTH_SERVICES_OPENAI_OPENAI_DOOR_H_
#define HEARTH_SERVICES_OPENAI_OPENAI_DOOR_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "proto/inference.grpc.pb.h"
#include "services/serving/http/http_server.h"
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
  std::vector<std::string> origins;  // whose pages may call; "*": all
  // Of a token, or none: who may ask what needs no call of the worker's API.
  std::function<absl::Status(const std::string& token)> check;
};

class OpenAiDoor final : public SideDoor {
 public:
  static absl::StatusOr<std::unique_ptr<OpenAiDoor>> Open(OpenAiOptions options);

  const std::string& address() const { return server_->address(); }
  // Answers that are under way may end; /health says that no more are taken.
  void Drain() override;

 private:
  explicit OpenAiDoor(OpenAiOptions options);
  using Answer = std::shared_ptr<HttpAnswer>;
  void Handle(HttpRequest request, const Answer& answer);
  // False: it was refused.
  bool MayCall(const HttpRequest& request, HttpHeaders* headers, HttpAnswer* answer) const;
  void StartCompletion(const HttpRequest& request, bool is_chat, const Answer& answer);
  void Tokenize(const HttpRequest& request, const Answer& answer);
  void Detokenize(const HttpRequest& request, HttpAnswer* answer) const;
  nlohmann::json TokenizerInfo() const;
  std::string Models(const std::string& only) const;

  const OpenAiOptions options_;
  const int64_t start_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<HttpServer> server_;  // last: it calls the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_OPENAI_DOOR_H_
