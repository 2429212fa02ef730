// CacheCounters: counts a worker's fetches, publishes and leases by outcome, and turns errors into
// misses.
//
// The failures of a store end here and nowhere else (docs/dev/invariants.md, 8): caches return a
// Status, and the callers of CacheCounters get a miss. Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_INFERENCE_CACHE_COUNTERS_H_
#define HEARTH_SERVICES_INFERENCE_CACHE_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class CacheCounters {
 public:
  // Counts a fetch, and returns its outcome for the engine. Counted as: "hit", "miss", or the
  // reason why there is neither: "unreachable" (or silent just before), "declined" and "abandoned"
  // (computing is faster), "deadline", "cancelled" (the caller left), "corrupt", "mismatch",
  // "refused", "full", "error".
  FetchOutcome EndFetch(const absl::Status& status, FetchOutcome outcome, uint64_t bytes);
  // Counts fetched bytes that were copied from the store's shared memory.
  void CountShared(uint64_t bytes);
  // Counts fetched bytes that the store's gpu tier lent.
  void CountFromDevice(uint64_t bytes);
  // Counts, by reason, a fetch that tried shared memory and then used the wire.
  void CountSharedFallback(const std::string& reason);
  // Counts a publish: as "stored", "nothing", "full", "nondeterminism", or by the reasons of
  // EndFetch.
  PublishOutcome EndPublish(absl::StatusOr<PublishOutcome> outcome);
  // Counts a lease: as "compute", "waited", "go", or by the reason why there was no answer.
  LeaseOutcome EndLease(absl::StatusOr<LeaseOutcome> outcome, bool waited);

  struct Snapshot {
    std::map<std::string, uint64_t> fetches, publishes, leases;  // number of calls by outcome
    std::map<std::string, uint64_t>
        shared_fallbacks;  // number of fetches that used the wire instead, by reason
    uint64_t bytes_fetched = 0, bytes_shared = 0, bytes_from_device = 0, bytes_published = 0;
  };
  Snapshot Read() const;

 private:
  mutable absl::Mutex mutex_;
  Snapshot counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CACHE_COUNTERS_H_
