// WorkerServer: a worker's gRPC API on a free port, with the committed tiny tokenizer, and with an
// engine whose forward pass is a stand-in.
//
// Thread safety: made and used by one test thread. The server has its own threads.
#ifndef HEARTH_TESTS_SERVICES_INFERENCE_WORKER_SERVER_H_
#define HEARTH_TESTS_SERVICES_INFERENCE_WORKER_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/inference.grpc.pb.h"
#include "services/inference/inference_service.h"
#include "services/serving/calls/admission.h"
#include "services/serving/server/server_runner.h"
#include "tests/support/memory_prefix_cache.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/engine/engine.h"
#include "worker/text/jinja/model_template.h"

namespace hearth {

// Everything that one Generate call returned.
struct Generation {
  grpc::Status status;
  std::vector<v1::GenerateResponse> messages;
  std::vector<uint32_t> ids;
  std::string text;
  v1::Started started;
  v1::Finished finished;
  v1::Published published;
  std::string retry_after_ms;  // retry-after-ms in the trailing metadata, or empty
};

class WorkerServer {
 public:
  struct Options {
    EngineOptions engine = SmallEngine();
    TinyGeometry geometry;
    bool with_tokenizer = true;
    std::string why_no_chats;   // why chats are refused; empty: chats are served
    std::string chat_template;  // the model's own template; empty: Gemma's renders chats
    PrefixCache* cache = nullptr;
    ExplainPrefix explain;
    std::string store;             // address of the store
    Admission::Recorder recorder;  // gets the record of each call; may be null
    Identities* identities = nullptr;
    absl::Duration patience = kStreamPatience;
    absl::Duration progress_pause = GeneratorOptions().progress_pause;
    absl::Duration plan_wait =
        absl::InfiniteDuration();  // so that results do not depend on the machine's speed
  };
  static Options Invariant();  // exactness class invariant, with a pool of 16 MiB
  explicit WorkerServer(Options options);
  ~WorkerServer();
  static EngineOptions SmallEngine();  // exactness class exact, chunks of 16 tokens, no pool

  Engine* engine() { return engine_.get(); }
  // Sets the cache later, for a cache that needs the engine's fingerprint. REQUIRES: no request was
  // made.
  void SetCache(PrefixCache* cache) { engine_->SetCache(cache); }
  Admission* admission() { return &admission_; }
  Generator* generator() { return generator_.get(); }
  ServerRunner* runner() { return runner_.get(); }
  v1::Inference::Stub* stub() { return stub_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  Generation Generate(const v1::GenerateRequest& request, grpc::ClientContext* context = nullptr);

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ModelTemplate> template_;
  std::unique_ptr<Engine> engine_;
  Admission admission_;
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<ServerRunner> runner_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// A worker with a cache in memory instead of a store.
struct CachedWorker {
  explicit CachedWorker(WorkerServer::Options options = {}) : server(std::move(options)) {
    cache = std::make_unique<MemoryPrefixCache>(server.engine()->layout());
    server.SetCache(cache.get());
  }
  std::unique_ptr<MemoryPrefixCache> cache;  // destroyed after the engine
  WorkerServer server;
};

// Calls Prefill. `response` gets its last message, `progress` the messages before.
grpc::Status Prefill(v1::Inference::Stub* stub, const v1::PrefillRequest& request,
                     v1::PrefillResponse* response,
                     std::vector<v1::PrefillResponse>* progress = nullptr);

// Returns a request for the prompt `ids` that generates `max_new_tokens` tokens, even after an end
// token.
v1::GenerateRequest IdsRequest(const std::vector<uint32_t>& ids, uint32_t max_new_tokens = 2);
v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_new_tokens = 2);

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_INFERENCE_WORKER_SERVER_H_
