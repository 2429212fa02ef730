#include "cache_store/store/store_meters.h"

namespace hearth {

std::map<std::string, uint64_t> StoreMeters::removed() const {
  std::map<std::string, uint64_t> removed;
  for (size_t i = 0; i < kRemovals; ++i) {
    removed[RemovalName(static_cast<Removal>(i))] = removed_[i].load(std::memory_order_relaxed);
  }
  return removed;
}

std::vector<LatencySeries> StoreMeters::Latencies(bool has_disk, bool has_device) const {
  std::vector<LatencySeries> series = {{"lookup", "", "", lookups_.Read()}};
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kDisk && !has_disk) continue;
    series.push_back({"slice_read", "tier", TierName(tier), slice_reads_[Place(tier)].Read()});
  }
  for (const Tier tier : {Tier::kGpu, Tier::kHost, Tier::kDisk}) {
    if ((tier == Tier::kDisk && !has_disk) || (tier == Tier::kGpu && !has_device)) continue;
    series.push_back({"fetch", "tier", TierName(tier), fetches_[Place(tier)].Read()});
  }
  for (const Durability level : {Durability::kMemory, Durability::kDisk, Durability::kSync}) {
    series.push_back({"publish_commit", "durability", DurabilityName(level),
                      commits_[static_cast<size_t>(level)].Read()});
  }
  return series;
}

}  // namespace hearth
