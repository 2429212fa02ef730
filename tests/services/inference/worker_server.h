// WorkerServer: a worker's API on a free port, over an engine with a stand-in for the forward pass,
// and with the committed tiny tokenizer.
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

namespace hearth {

// The results of one Generate call.
struct Generation {
  grpc::Status status;
  std::vector<v1::GenerateResponse> messages;
  std::vector<uint32_t> ids;
  std::string text;
  v1::Started started;
  v1::Finished finished;
  v1::Published published;
  std::string retry_after_ms;  // trailing metadata, or empty
};

class WorkerServer {
 public:
  struct Options {
    EngineOptions engine = SmallEngine();
    TinyGeometry geometry;
    bool with_tokenizer = true;
    std::string why_no_chats;  // empty: chats are served
    PrefixCache* cache = nullptr;
    InferenceOptions::Explain explain;
    std::string store;             // the store's address
    Admission::Recorder recorder;  // of calls; may be null
    Identities* identities = nullptr;
    absl::Duration patience = kStreamPatience;
    absl::Duration progress_pause = GeneratorOptions().progress_pause;
    absl::Duration plan_wait =
        absl::InfiniteDuration();  // the result does not depend on the machine's speed
  };
  static Options Invariant();  // class invariant, with a pool of 16 MiB
  explicit WorkerServer(Options options);
  ~WorkerServer();
  static EngineOptions SmallEngine();  // class exact, C = 16, pool off

  Engine* engine() { return engine_.get(); }
  // For caches that need the engine's fingerprint. REQUIRES: before the first request.
  void SetCache(PrefixCache* cache) { engine_->SetCache(cache); }
  Admission* admission() { return &admission_; }
  Generator* generator() { return generator_.get(); }
  ServerRunner* runner() { return runner_.get(); }
  v1::Inference::Stub* stub() { return stub_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  Generation Generate(const v1::GenerateRequest& request, grpc::ClientContext* context = nullptr);

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  Admission admission_;
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<ServerRunner> runner_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// A worker whose cache is in memory.
struct CachedWorker {
  explicit CachedWorker(WorkerServer::Options options = {}) : server(std::move(options)) {
    cache = std::make_unique<MemoryPrefixCache>(server.engine()->layout());
    server.SetCache(cache.get());
  }
  std::unique_ptr<MemoryPrefixCache> cache;  // outlives the engine
  WorkerServer server;
};

// Returns the end of one Prefill call. `progress` gets the messages before.
grpc::Status Prefill(v1::Inference::Stub* stub, const v1::PrefillRequest& request,
                     v1::PrefillResponse* response,
                     std::vector<v1::PrefillResponse>* progress = nullptr);

// Returns a request for the prompt `ids` and `max_new_tokens` tokens. End tokens do not end it.
v1::GenerateRequest IdsRequest(const std::vector<uint32_t>& ids, uint32_t max_new_tokens = 2);
v1::GenerateRequest TextRequest(const std::string& text, uint32_t max_new_tokens = 2);

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_INFERENCE_WORKER_SERVER_H_
