// SimWorker: a real engine with a hashing model. The engine's cache calls wait until the World
// answers them.
//
// The engine runs on its own threads. AwaitRest returns when every thread waits for the World, so
// that events happen one at a time and always in the same order. The number of expected calls is
// computed from the engine's rules (restore_rule.h), not found out by waiting. Thread safety: the
// World's thread calls all methods; the engine's threads call the cache methods.
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

// A call to the cache. The engine's thread waits until the World answers it.
struct CacheCall {
  enum class Kind { kFetch, kLease, kPublish };
  Kind kind = Kind::kFetch;
  PrefixRequest prefix;
  uint32_t above_tokens = 0, max_tokens = 0;
  LeaseTerms terms;
  PublishRequestSpec publish;
  // The World's answer.
  FetchOutcome fetched;
  PublishOutcome published;
  LeaseOutcome turn;
  bool is_answered = false;
};
const char* KindName(CacheCall::Kind kind);

// When the client cancels a request, unless the World chooses a time.
enum class CancelAt { kNever, kStart, kFirstToken };

// The result of a finished request.
struct WorkerResult {
  std::string id;
  absl::Status error;
  StartedInfo started;
  FinishedInfo finished;
  std::vector<int32_t> tokens;
  bool is_cancelled = false;  // the client cancelled the request
};

class SimWorker : public PrefixCache {
 public:
  explicit SimWorker(const EngineOptions& options);
  ~SimWorker() override;

  // Submits a request to the engine. REQUIRES: its request_id is unique.
  void Submit(const EngineRequest& request, CancelAt when) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels a request. Returns false if the request has already ended.
  bool Cancel(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until all threads of the engine wait for the World. Returns the new cache calls, in an
  // order that depends only on the seed.
  std::vector<std::shared_ptr<CacheCall>> AwaitRest() ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(CacheCall* call) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<WorkerResult> TakeResults() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the lease for a request's Lease call. When the engine releases the lease, `*released`
  // becomes true before AwaitRest returns.
  std::shared_ptr<ComputeLease> MakeLease(const std::string& id,
                                          std::shared_ptr<std::atomic<bool>> released)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of running requests and running publishes.
  size_t busy() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the engine as if its process were killed: clients get no answer. Starts a new engine.
  void Crash() ABSL_LOCKS_EXCLUDED(mu_);
  // Drains, as on SIGTERM: running requests and their publishes finish. REQUIRES: no request is
  // submitted until RestartEngine.
  void Drain();
  // Replaces the drained engine by a new one. REQUIRES: is_draining(), busy() == 0.
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
  // The progress of a request, and the number of publishes and leases with which it must end.
  struct Running {
    EngineRequest request;
    std::shared_ptr<EngineRequestHandle> handle;
    WorkerResult result;
    bool is_started = false, is_over = false, is_published = false;
    bool ended_early = false;  // the request failed before it stored anything
    bool has_lease = false;    // a Lease call was granted
    size_t leases_held = 0;    // number of leases that are not released yet
    size_t publishes_due = 0, publishes_come = 0;
    // The boundary of the request's last publish, which ends the lease.
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
