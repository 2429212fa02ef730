// Publisher: sends kept boundaries to the cache on its own threads, while the request continues.
//
// Thread safety: all methods may be called from any thread.
// Ownership: a job owns its objects and its staging lease until it ends.
// Invariants:
//  1. Waiting jobs hold at most `max_waiting_bytes`, each object counted once, or there is only one
//     waiting job. The oldest jobs are dropped to ensure this.
//  2. The `done` of a submitted job is called exactly once: by a publisher thread, or, if the job
//  is
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
  std::shared_ptr<ComputeLease> compute_lease;  // released after the publish
  std::function<void(const PublishOutcome&)> done;
};

class Publisher {
 public:
  // `timeout`: limit of one publish. `counters` must outlive the publisher.
  Publisher(absl::Duration timeout, uint64_t max_waiting_bytes, EngineCounters* counters);

  void Submit(PrefixCache* cache, PublishJob job) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops the oldest waiting job to free its memory. Returns false if no job waits.
  bool DropOldest() { return queue_.DropOldest(); }
  bool WaitIdle(absl::Time deadline) { return queue_.WaitIdle(deadline); }
  void Stop() {
    stopping_ = true;
    queue_.Stop();
  }

 private:
  void Publish(PrefixCache* cache, PublishJob* job);
  void Drop(const PublishJob& job, const char* why);
  // Adds or removes a waiting job, and the bytes that no other waiting job holds.
  void Count(const PublishJob& job, bool waits) ABSL_LOCKS_EXCLUDED(mu_);

  const absl::Duration timeout_;
  const uint64_t max_waiting_bytes_;
  EngineCounters* const counters_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mu_;
  size_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<const std::byte*, size_t> holders_ ABSL_GUARDED_BY(mu_);  // waiting jobs per object
  TaskQueue queue_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_PUBLISHER_H_
