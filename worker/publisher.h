// Publisher: hands kept boundaries to the cache, on its own threads, after the request that made
// them has gone on.
//
// Thread safety: all methods from any thread.
// Ownership: a job owns its objects and its share of the staging budget until it is over.
// Invariant: a submitted job's `done` is called exactly once, from a publisher thread or from Stop,
// or from Submit itself when the job is not accepted.
#ifndef HEARTH_WORKER_PUBLISHER_H_
#define HEARTH_WORKER_PUBLISHER_H_

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "worker/engine_counters.h"
#include "worker/prefix_cache.h"
#include "worker/staging.h"
#include "worker/task_queue.h"

namespace hearth {

struct PublishJob {
  PublishRequestSpec spec;
  StagingBudget::Lease lease;
  std::shared_ptr<ComputeLease> compute_lease;  // ends with the publish
  std::function<void(const PublishOutcome&)> done;
};

class Publisher {
 public:
  // `timeout`: what one publish may take. `counters` must outlive the publisher.
  Publisher(absl::Duration timeout, EngineCounters* counters);

  void Submit(PrefixCache* cache, PublishJob job);
  bool WaitIdle(absl::Time deadline) { return queue_.WaitIdle(deadline); }
  void Stop() { queue_.Stop(); }

 private:
  void Publish(PrefixCache* cache, PublishJob* job);

  const absl::Duration timeout_;
  EngineCounters* const counters_;
  TaskQueue queue_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PUBLISHER_H_
