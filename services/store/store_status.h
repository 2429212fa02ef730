// StoreStatus: the figures of the status page, as JSON.
//
// Counters since the start, and their growth in each of the last steps, sampled by a thread of its
// own. No tenant's content: the hottest prefixes are ids, sizes and counts. A text is reused for a
// second, so frequent calls cost the store little. Thread safety: all methods from any thread.
// Ownership: the store must outlive it.
#ifndef HEARTH_SERVICES_STORE_STORE_STATUS_H_
#define HEARTH_SERVICES_STORE_STORE_STATUS_H_

#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

class StoreStatus {
 public:
  static constexpr absl::Duration kStep = absl::Seconds(10);
  static constexpr size_t kSteps = 60;  // ten minutes
  static constexpr size_t kHottest = 10;

  // `clock` null: the system's.
  StoreStatus(TieredStore* store, std::string version, Clock* clock = nullptr);
  ~StoreStatus();

  // Samples every kStep from now on.
  void Start();
  // Adds a step: the growth of the counters since the last.
  void Sample();
  std::string JsonText();

 private:
  struct Growth {
    uint64_t fetches = 0, hits = 0, lookup_tokens = 0, hit_tokens = 0, published_bytes = 0;
  };
  static Growth Totals(const StoreStats& stats);
  static Growth Since(const Growth& last, const Growth& now);
  std::string Make() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TieredStore* const store_;
  const std::string version_;
  SystemClock system_clock_;
  Clock* const clock_;
  const absl::Time start_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Growth last_ ABSL_GUARDED_BY(mutex_);
  std::deque<Growth> steps_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::string made_ ABSL_GUARDED_BY(mutex_);
  absl::Time made_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::thread sampler_;
};

// The value below which a share `q` of the observations lies, from the buckets; 0 without any.
double Quantile(const LatencyCounts& counts, double q);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_STATUS_H_
