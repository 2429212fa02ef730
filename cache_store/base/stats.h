// Counter: the events that the store counts. stats.cc has a description of each counter. Names are
// part of the API: Stats and the metrics show them.
//
// Thread safe (relaxed atomics): the counters of a snapshot may be from slightly different times.
#ifndef HEARTH_CACHE_STORE_BASE_STATS_H_
#define HEARTH_CACHE_STORE_BASE_STATS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace hearth {

enum class Counter {
  kFetches,
  kLookupTokens,
  kHits,
  kMissUnknownFingerprint,
  kMissNoCommonPrefix,
  kMissNoRestorePoint,
  kMissNotAbove,
  kHeldTokens,
  kSavedUs,
  kPublicHits,
  kRefetches,
  kImplicitHits,
  kExports,
  kMatchedTokens,
  kBytesReadHost,
  kBytesReadDisk,
  kBytesReadGpu,
  kBytesShared,
  kPromotedObjects,
  kPromotionsSkipped,
  kGpuPromotedObjects,
  kGpuPromotionsDropped,
  kGpuPromotionsFailed,
  kPublishes,
  kPublishedRestorePoints,
  kPublishedBytes,
  kPublishesRefusedStaged,
  kPublishesRefusedFull,
  kPublishesRefusedQuota,
  kPublishesAbandoned,
  kNondeterminism,
  kDigestMismatches,
  kWriteBehindSkipped,
  kWriteBehindFailed,
  kEvicted,
  kDemoted,
  kDropped,
  kQuarantined,
  kHostCorrupt,
  kTierErrors,
  kRecoveredRestorePoints,
  kRecoveryUnreadManifests,
  kRecoveryDroppedManifests,
  kRecoveryLostRestorePoints,
  kRecoveryCollectedObjects,
  kRecoveryDamage,
  kEventsLost,
  kLeasesGranted,
  kLeaseWaits,
  kLeaseWaitsHit,
  kLeaseWaitsTimedOut,
  kLeaseTakeovers,
  kScrubbedBytes,
  kScrubbedObjects,
  kScrubCorrupt,
  kScrubRepairedRecords,
  kScrubPasses,
  kSharedLookups,
  kSharedHits,
  kSharedUnanswered,
  kSharedVanishedParts,
  kSharedRejectedValues,
  kSharedNotKept,
  kSharedReadBytes,
  kSharedWrittenBytes,
  kSharedWrittenObjects,
  kSharedWritesSkipped,
  kSharedWritesFailed,
  // The following values are not counted, but computed when statistics are read.
  kHostGrowthsFailed,
  kGpuEvictedObjects,
  kSharedUnreachableShards,
  kLastFullScrubUnixS,
  kCount,
};

const char* CounterName(Counter counter);
// Returns the description of a counter; empty if no counter has this name.
std::string CounterMeaning(const std::string& name);

class Counters {
 public:
  void Add(Counter counter, uint64_t amount = 1) {
    values_[static_cast<size_t>(counter)].fetch_add(amount, std::memory_order_relaxed);
  }
  uint64_t Get(Counter counter) const {
    return values_[static_cast<size_t>(counter)].load(std::memory_order_relaxed);
  }
  std::map<std::string, uint64_t> Snapshot() const;

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Counter::kCount)> values_{};
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_STATS_H_
