// SimWorker: a real engine on the stand-in model. Its cache calls wait until the world answers
// them.
//
// The engine runs on its own threads. AwaitRest returns when every thread waits for the world, so
// that events happen one at a time and always in the same order. The expected calls follow from the
// engine's rules (restore_rule.h), not from waiting.
// Thread safety: the world's thread calls all methods; the engine's threads call the cache methods.
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

// A call of the cache, on an engine thread that waits for the answer.
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

// When the caller cancels a request, if the world does not choose a time.
enum class CancelAt { kNever, kStart, kFirstToken };

// The result of a finished request.
struct WorkerResult {
  std::string id;
  absl::Status error;
  StartedInfo started;
  FinishedInfo finished;
  std::vector<int32_t> tokens;
  bool is_cancelled = false;  // its caller cancelled it
};

class SimWorker : public PrefixCache {
 public:
  explicit SimWorker(const EngineOptions& options);
  ~SimWorker() override;

  // Submits a request. REQUIRES: its request_id is unique.
  void Submit(const EngineRequest& request, CancelAt when) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels a request. Returns false if it has ended.
  bool Cancel(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the engine is at rest. Returns the new calls, always in the same order.
  std::vector<std::shared_ptr<CacheCall>> AwaitRest() ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(CacheCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<WorkerResult> TakeResults() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the world's answer to a request's Lease. When the engine releases the lease, `released`
  // is set before AwaitRest returns.
  std::shared_ptr<ComputeLease> MakeLease(const std::string& id,
                                          std::shared_ptr<std::atomic<bool>> released)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of running requests and publishes.
  size_t busy() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the engine like a killed process: waiting callers get no answer. A new engine replaces it.
  void Crash() ABSL_LOCKS_EXCLUDED(mu_);
  // Drains as on SIGTERM: running requests and their publishes finish. REQUIRES: no request is
  // submitted until RestartEngine.
  void Drain();
  // REQUIRES: is_draining(), busy() == 0.
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
  // The progress of a request, and the publishes and leases with which it must end.
  struct Running {
    EngineRequest request;
    std::shared_ptr<EngineRequestHandle> handle;
    WorkerResult result;
    bool is_started = false, is_over = false, is_published = false;
    bool ended_early = false;  // failed before it stored anything
    bool has_lease = false;    // a Lease was granted
    size_t leases_held = 0;    // leases not yet released
    size_t publishes_due = 0, publishes_come = 0;
    // The publish of this boundary ends the lease.
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
