// CountingPrefixCache: a cache of prefixes whose errors are counted misses.
//
// The one place where a store's failures end (docs/invariants.md, 8): implementations return a
// Status, callers see a miss. Thread safety: all methods from any thread. Ownership: the counters
// must outlive it.
#ifndef HEARTH_SERVICES_INFERENCE_COUNTING_PREFIX_CACHE_H_
#define HEARTH_SERVICES_INFERENCE_COUNTING_PREFIX_CACHE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/inference/cache_counters.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class CountingPrefixCache : public PrefixCache {
 public:
  explicit CountingPrefixCache(CacheCounters* counters) : counters_(counters) {}

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Time deadline) final;
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Time deadline) final;
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Time deadline) final;

 private:
  // As Fetch, Publish and Lease, with errors. `load` is the prefix's, or one that always loads;
  // `*bytes` and `*waited` are set on errors too.
  virtual absl::StatusOr<FetchOutcome> TryFetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                                uint32_t max_tokens, absl::Time deadline,
                                                LoadTrial* load, uint64_t* bytes) = 0;
  virtual absl::StatusOr<PublishOutcome> TryPublish(const PublishRequestSpec& spec,
                                                    absl::Time deadline) = 0;
  virtual absl::StatusOr<LeaseOutcome> TryLease(const PrefixRequest& prefix, uint32_t above_tokens,
                                                uint32_t max_tokens, const LeaseTerms& terms,
                                                absl::Time deadline, bool* waited) = 0;

  CacheCounters* const counters_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_COUNTING_PREFIX_CACHE_H_
