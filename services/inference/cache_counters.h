// CacheCounters: counts a worker's fetches and publishes by outcome.
//
// Thread safety: all methods from any thread.
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
  // Outcomes of a fetch: "hit", "miss", or the reason for neither: "unreachable" (or silent just
  // before), "declined" and "abandoned" (computing is faster), "deadline", "cancelled" (the caller
  // left), "corrupt", "mismatch", "refused", "full", "error".
  void CountFetch(const std::string& outcome, uint64_t bytes = 0);
  // Those of a fetch's bytes that were copied out of the store's shared memory.
  void CountShared(uint64_t bytes);
  // The same for its gpu tier.
  void CountFromDevice(uint64_t bytes);
  // The reason why a fetch that began with shared memory went over the wire.
  void CountSharedFallback(const std::string& reason);
  // Outcomes of a publish: "stored", "nothing", or "full", "nondeterminism" and those above.
  void CountPublish(const std::string& outcome, uint64_t bytes = 0);

  // Outcomes of asking to compute a prefix: "compute", "waited", "go", or why there was no answer.
  void CountLease(const std::string& outcome);

  struct Snapshot {
    std::map<std::string, uint64_t> fetches, publishes, leases;  // by outcome
    std::map<std::string, uint64_t> shared_fallbacks;            // by reason
    uint64_t bytes_fetched = 0, bytes_shared = 0, bytes_from_device = 0, bytes_published = 0;
  };
  Snapshot Read() const;

 private:
  mutable absl::Mutex mutex_;
  Snapshot counts_ ABSL_GUARDED_BY(mutex_);
};

// The name of a fetch's outcome, where `load` decided whether to load.
const char* FetchName(const absl::StatusOr<FetchOutcome>& outcome, const LoadTrial& load);

// The name of the outcome of an RPC that failed with `status`.
const char* FailureOutcome(const absl::Status& status);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CACHE_COUNTERS_H_
