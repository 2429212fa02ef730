// StoreStats: a store's contents, and its counts since it was opened.
//
// Plain values.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_STATS_H_
#define HEARTH_CACHE_STORE_STORE_STORE_STATS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache_store/base/latency.h"
#include "cache_store/base/stats.h"
#include "cache_store/base/tenant_ledger.h"
#include "proto/kv_layout.h"

namespace hearth {

struct TierUsage {
  Tier tier = Tier::kNone;
  uint64_t bytes = 0, capacity_bytes = 0, objects = 0, evicted_restore_points = 0;
  uint64_t hit_tokens = 0;  // of restore points read whole, whose slowest tier this was in the end
  uint64_t read_bytes = 0;  // of slices, whatever way they went out
  uint64_t written_bytes = 0;  // of objects, since the store opened
  uint64_t unread_bytes = 0;   // of those, what left the tier without ever having been read from it
};
// One histogram: lookups; slice reads or fetches of one tier; publishes of one durability.
struct LatencySeries {
  std::string name, help;
  std::string label, label_value;  // label empty: none
  LatencyCounts counts;
};
struct TenantFigures {
  TenantUsage usage;
  TenantQuota quota;
};

struct StoreStats {
  uint64_t incarnation = 0;
  std::vector<TierUsage> tiers;
  uint64_t restore_points = 0, objects = 0, pinned_bytes = 0;
  uint64_t resident_bytes = 0;                       // of the RAM tier's memory, used or ready
  uint64_t staged_bytes = 0, most_staged_bytes = 0;  // of publishes not committed; ever
  std::map<std::string, uint64_t> counters;          // names in stats.h
  std::map<std::string, uint64_t> removed;           // restore points, by RemovalName
  std::vector<LatencySeries> latencies;

  uint64_t Of(Counter counter) const { return counters.at(CounterName(counter)); }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_STATS_H_
