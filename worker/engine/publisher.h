// Publisher: publishes restore points to the cache on separate threads, while the request
// continues.
//
// Thread safety: all methods may be called from any thread.
// Ownership: until a job ends, the job owns its objects and its staging lease.
// Invariants:
//  1. If more than one job waits, the waiting jobs hold at most `max_waiting_bytes`, each object
//     counted once. Submit drops the oldest jobs to ensure this.
//  2. `done` of a submitted job is called exactly once: by a publisher thread, or, if the job is
//     dropped, by Stop, DropOldest or Submit.
#ifndef HEARTH_WORKER_ENGINE_PUBLISHER_H_
#define HEARTH_WORKER_ENGINE_PUBLISHER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/staging.h"
#include "worker/engine/task_queue.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

struct PublishJob {
  PublishRequestSpec spec;
  StagingBudget::Lease lease;
  std::shared_ptr<ComputeLease> compute_lease;  // released when the publish ends
  std::function<void(const PublishOutcome&)> done;
};

class Publisher {
 public:
  // `timeout`: time limit of one publish. `counters` must outlive the publisher.
  Publisher(absl::Duration timeout, uint64_t max_waiting_bytes, EngineCounters* counters);

  void Submit(PrefixCache* cache, PublishJob job) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops the oldest waiting job to free its memory. Returns false if no job waits.
  bool DropOldest() { return queue_.DropOldest(); }
  // Completes late objects (KvObject::late) on a separate thread, so that a publish that waits for
  // the store does not delay it. Engine's thread only.
  void Seal(const KvObjects& objects);
  // Waits until all calls of Seal have ended. Returns false if none was left. Engine's thread only.
  bool AwaitSeals();
  bool WaitIdle(absl::Time deadline) { return queue_.WaitIdle(deadline); }
  void Stop() {
    stopping_ = true;
    queue_.Stop();
  }

 private:
  void Publish(PrefixCache* cache, PublishJob* job);
  void Drop(const PublishJob& job, const char* why);
  // Adds a job to the waiting jobs, or removes it (`waits` is false). Updates the bytes that
  // waiting jobs hold: each object is counted once.
  void Count(const PublishJob& job, bool waits) ABSL_LOCKS_EXCLUDED(mu_);

  const absl::Duration timeout_;
  const uint64_t max_waiting_bytes_;
  EngineCounters* const counters_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mu_;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Number of waiting jobs, by object memory.
  std::map<const std::byte*, size_t> holders_ ABSL_GUARDED_BY(mu_);
  TaskQueue queue_;
  std::unique_ptr<TaskQueue> sealer_;  // null until an object is late
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PUBLISHER_H_
