#include "cache_store/store/store_meters.h"

namespace hearth {
namespace {

constexpr char kLookupLatency[] = "lookup";
constexpr char kSliceReadLatency[] = "slice_read";
constexpr char kFetchLatency[] = "fetch";
constexpr char kCommitLatency[] = "publish_commit";

}  // namespace

std::map<std::string, uint64_t> StoreMeters::removed() const {
  std::map<std::string, uint64_t> removed;
  for (size_t i = 0; i < kRemovals; ++i) {
    removed[RemovalName(static_cast<Removal>(i))] = removed_[i].load(std::memory_order_relaxed);
  }
  return removed;
}

std::vector<LatencySeries> StoreMeters::Latencies(bool has_disk, bool has_device,
                                                  bool has_shared) const {
  std::vector<LatencySeries> series = {
      {kLookupLatency, "Time to find the longest restore point of a prompt, bytes not included.",
       "", "", lookups_.Read()}};
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kDisk && !has_disk) continue;
    series.push_back({kSliceReadLatency,
                      "Time to read one slice, and to verify it where the caller does not, by the "
                      "tier that had it.",
                      "tier", TierName(tier), slice_reads_[Place(tier)].Read()});
  }
  for (const Tier tier : {Tier::kGpu, Tier::kHost, Tier::kDisk, Tier::kShared}) {
    if ((tier == Tier::kDisk && !has_disk) || (tier == Tier::kGpu && !has_device)) continue;
    if (tier == Tier::kShared && !has_shared) continue;
    series.push_back({kFetchLatency,
                      "Time from a lookup's end until the last slice of its restore point was "
                      "handed out, by the slowest tier.",
                      "tier", TierName(tier), fetches_[Place(tier)].Read()});
  }
  for (const Durability level : {Durability::kMemory, Durability::kDisk, Durability::kSync}) {
    series.push_back({kCommitLatency, "Time from a publish's last byte to its acknowledgement.",
                      "durability", DurabilityName(level),
                      commits_[static_cast<size_t>(level)].Read()});
  }
  return series;
}

}  // namespace hearth
