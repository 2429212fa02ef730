// StoreMeters: a store's counters and timings, for its statistics. Names of counters are in
// stats.h.
//
// Thread safe: relaxed atomics, read one by one.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_METERS_H_
#define HEARTH_CACHE_STORE_STORE_STORE_METERS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache_store/base/latency.h"
#include "cache_store/base/removal.h"
#include "cache_store/base/stats.h"
#include "cache_store/base/tier.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

class StoreMeters {
 public:
  Counters& counters() { return counters_; }

  void ObserveLookup(std::chrono::nanoseconds took) { lookups_.Observe(took); }
  void ObserveSliceRead(Tier tier, std::chrono::nanoseconds took) {
    slice_reads_[Place(tier)].Observe(took);
  }
  // The time to read a whole restore point; `tier`: the slowest that it came from.
  void ObserveFetch(Tier tier, std::chrono::nanoseconds took) {
    fetches_[Place(tier)].Observe(took);
  }
  void ObserveCommit(Durability reached, std::chrono::nanoseconds took) {
    commits_[static_cast<size_t>(reached)].Observe(took);
  }
  void AddHitTokens(Tier tier, uint64_t tokens) {
    hit_tokens_[Place(tier)].fetch_add(tokens, std::memory_order_relaxed);
  }
  uint64_t hit_tokens(Tier tier) const {
    return hit_tokens_[Place(tier)].load(std::memory_order_relaxed);
  }
  // A restore point left.
  void AddRemoved(Removal why) {
    removed_[static_cast<size_t>(why)].fetch_add(1, std::memory_order_relaxed);
  }
  std::map<std::string, uint64_t> removed() const;  // by RemovalName

  // For the tiers that exist.
  std::vector<LatencySeries> Latencies(bool has_disk, bool has_device, bool has_shared) const;

 private:
  static constexpr size_t kTiers = 6;
  static constexpr size_t kDurabilities = 5;
  static size_t Place(Tier tier) { return static_cast<size_t>(tier); }

  Counters counters_;
  LatencyHistogram lookups_;
  std::array<LatencyHistogram, kTiers> slice_reads_, fetches_;
  std::array<LatencyHistogram, kDurabilities> commits_;
  std::array<std::atomic<uint64_t>, kTiers> hit_tokens_{};
  std::array<std::atomic<uint64_t>, kRemovals> removed_{};
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_METERS_H_
