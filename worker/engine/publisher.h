// Publisher: hands kept boundaries to the cache, on its own threads, after the request that made
// them has gone on.
//
// Thread safety: all methods from any thread.
// Ownership: a job owns its objects and its share of the staging budget until it has ended.
// Invariants:
//   1. Waiting jobs hold no more than a limit of bytes, each counted once, or there is only one:
//   the oldest are dropped for that.
//   2. A submitted job's `done` is called exactly once: from a publisher thread, or from Stop,
//      DropOldest or Submit where it is dropped.
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
  std::shared_ptr<ComputeLease> compute_lease;  // ends with the publish
  std::function<void(const PublishOutcome&)> done;
};

class Publisher {
 public:
  // `timeout`: of one publish. `counters` must outlive the publisher.
  Publisher(absl::Duration timeout, uint64_t max_waiting_bytes, EngineCounters* counters);

  void Submit(PrefixCache* cache, PublishJob job) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops the job that has waited longest, for the sake of its memory; false when none waits.
  bool DropOldest() { return queue_.DropOldest(); }
  bool WaitIdle(absl::Time deadline) { return queue_.WaitIdle(deadline); }
  void Stop() {
    stopping_ = true;
    queue_.Stop();
  }

 private:
  void Publish(PrefixCache* cache, PublishJob* job);
  void Drop(const PublishJob& job, const char* why);
  // Adds or subtracts a waiting job and the bytes that it alone holds.
  void Count(const PublishJob& job, bool waits) ABSL_LOCKS_EXCLUDED(mu_);

  const absl::Duration timeout_;
  const uint64_t max_waiting_bytes_;
  EngineCounters* const counters_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mu_;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<const std::byte*, size_t> holders_ ABSL_GUARDED_BY(mu_);  // waiting jobs, by object
  TaskQueue queue_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PUBLISHER_H_
