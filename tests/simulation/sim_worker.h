// SimWorker: a real engine on the stand-in model, whose calls of its cache wait until the world
// answers them.
//
// The engine runs on its own threads; AwaitRest returns when each of them waits for the world, so
// that one thing at a time happens, in the same order every time. The expected calls follow from
// the rules that the engine obeys (restore_rule.h), not from waiting. Thread safety: all methods
// from the world's thread; the cache is called from the engine's.
#ifndef HEARTH_TESTS_SIMULATION_SIM_WORKER_H_
#define HEARTH_TESTS_SIMULATION_SIM_WORKER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "worker/engine/engine.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// A call of the cache, on a thread of the engine's that waits for its answer.
struct CacheCall {
  enum class Kind { kFetch, kLease, kPublish };
  Kind kind = Kind::kFetch;
  PrefixRequest prefix;
  uint32_t above_tokens = 0, max_tokens = 0;
  LeaseTerms terms;
  PublishRequestSpec publish;
  // The answer.
  FetchOutcome fetched;
  PublishOutcome published;
  LeaseOutcome turn;
  bool is_answered = false;
};
const char* KindName(CacheCall::Kind kind);

// When the caller gives up a request, if the world does not choose a time.
enum class CancelAt { kNever, kStart, kFirstToken };

// The result of a finished request.
struct WorkerResult {
  std::string id;
  absl::Status error;
  StartedInfo started;
  FinishedInfo finished;
  std::vector<int32_t> tokens;
  bool is_cancelled = false;  // its caller gave up before its end
};

class SimWorker : public PrefixCache {
 public:
  explicit SimWorker(const EngineOptions& options);
  ~SimWorker() override;

  // REQUIRES: no other request has its request_id.
  void Submit(const EngineRequest& request, CancelAt when) ABSL_LOCKS_EXCLUDED(mu_);
  // False when it has ended.
  bool Cancel(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the engine is at rest; returns the new calls, in an order that is always the same.
  std::vector<std::shared_ptr<CacheCall>> AwaitRest() ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(CacheCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<WorkerResult> TakeResults() ABSL_LOCKS_EXCLUDED(mu_);
  // The world's answer to the Lease of a request; `released` is set, before AwaitRest returns, when
  // the engine has released it.
  std::shared_ptr<ComputeLease> MakeLease(const std::string& id,
                                          std::shared_ptr<std::atomic<bool>> released)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Number of requests and publishes under way.
  size_t busy() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends like a killed process: waiting callers are told nothing. A new one takes its place.
  void Crash() ABSL_LOCKS_EXCLUDED(mu_);
  // As on SIGTERM: takes no new request, ends those that run and what they publish.
  // REQUIRES: nothing is submitted before it has begun anew.
  void Drain();
  // REQUIRES: it drains, and is not busy any more.
  void RestartEngine() ABSL_LOCKS_EXCLUDED(mu_);
  bool is_draining() const { return drainer_.joinable(); }
  EngineStats Stats() const { return engine_->Stats(); }

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mu_);
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_);
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The publishes and leases that a request must end with, and its progress.
  struct Running {
    EngineRequest request;
    std::shared_ptr<EngineRequestHandle> handle;
    WorkerResult result;
    bool is_started = false, is_over = false, is_published = false;
    bool ended_early = false;  // by an error, before it kept anything
    bool has_lease = false;    // was given one
    size_t leases_held = 0;    // and holds it still
    size_t publishes_due = 0, publishes_come = 0;
    // The lease goes with the publish of this boundary.
    uint32_t last_boundary = 0;
    bool last_is_answered = false;
  };
  class HeldLease;
  struct Caller;

  void Start();
  void Stop();
  EngineCallbacks CallbacksOf(const std::string& id, CancelAt when,
                              const std::shared_ptr<Caller>& caller);
  void Wait(const std::shared_ptr<CacheCall>& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnStarted(const std::string& id, const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mu_);
  size_t PublishesOf(const Running& running) const;
  bool IsAtRest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t Waiting(const std::string& id, bool publishes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const EngineOptions options_;
  mutable absl::Mutex mu_;
  bool is_crashing_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Running> running_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<CacheCall>> waiting_ ABSL_GUARDED_BY(mu_), new_ ABSL_GUARDED_BY(mu_);
  std::vector<WorkerResult> results_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Engine> engine_;
  std::thread drainer_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_SIM_WORKER_H_
