// Counter: the events that the store counts. Names are part of the API: Stats and the metrics show
// them.
//
// Thread safe: relaxed atomics, read one by one (a snapshot may be torn between two counters).
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
  kLookupTokens,  // tokens of the prompts that fetches asked for
  kHits,
  kMissUnknownFingerprint,  // no prompt of this fingerprint and tenant was ever stored
  kMissNoCommonPrefix,      // nothing stored begins like this prompt
  kMissNoRestorePoint,      // a common prefix, but no complete restore point in it
  kMissNotAbove,            // only restore points that the caller already has
  kPublicHits,              // of the hits: another namespace than the tenant's own was read
  kRefetches,               // lookups of callers that could not use what they got; nowhere else
  kImplicitHits,            // hits at a boundary that had no manifest of its own
  kExports,                 // by id: no lookup, no hit and no use
  kMatchedTokens,
  kBytesReadHost,
  kBytesReadDisk,
  kBytesReadGpu,
  kBytesShared,  // of those from RAM: copied by workers out of the shared memory
  kPromotedRestorePoints,
  kPromotionsSkipped,  // did not fit beside what is in use
  kGpuPromotedObjects,
  kGpuPromotionsDropped,  // the queue was full, there was no room, or the object had left RAM
  kGpuPromotionsFailed,   // errors of the device, or other bytes than went in
  kPublishes,
  kPublishedRestorePoints,
  kPublishedBytes,
  kPublishesRefusedStaged,   // over max_staged_bytes
  kPublishesRefusedFull,     // no room that eviction may make
  kPublishesRefusedQuota,    // over its tenant's limit
  kPublishesRefusedLoading,  // the index was not loaded in time
  kPublishesAbandoned,       // sessions that ended without a commit
  kNondeterminism,           // other bytes under a key that exists
  kDigestMismatches,         // a slice that is not what was announced
  kWriteBehindSkipped,       // queue full: stays in RAM only
  kWriteBehindFailed,
  kEvicted,  // restore points that left the store
  kDemoted,  // restore points whose RAM copy was dropped
  kDropped,
  kQuarantined,  // objects that failed verification on disk
  kHostCorrupt,  // RAM copies that failed verification
  kTierErrors,
  kCompressedFromBytes,  // of objects that were compressed for the disk, before
  kCompressedToBytes,    // and after
  kRecoveredRestorePoints,
  kRecoveryUnreadManifests,    // that the disk would not give: neither served nor erased
  kRecoveryDroppedManifests,   // a manifest that does not match its objects
  kRecoveryLostRestorePoints,  // acknowledged, and not there any more
  kRecoveryCollectedObjects,   // objects that no manifest named
  kRecoveryDamage,             // files, and ranges of records, that a start found damaged
  kEventsLost,
  kLeasesGranted,
  kLeaseWaits,          // callers that waited for another's computation
  kLeaseWaitsHit,       // of these: served by it
  kLeaseWaitsTimedOut,  // waited their whole budget and got nothing
  kLeaseTakeovers,      // computed in place of a holder that gave up or died
  kScrubbedBytes,
  kScrubbedObjects,
  kScrubCorrupt,          // objects that the scrub found rotten or unreadable: quarantined
  kScrubRepairedRecords,  // records that had rotted on disk, written anew from memory
  kScrubPasses,           // complete ones
  kSharedLookups,         // that asked the engine which stores share
  kSharedHits,            // of these: a restore point, or a longer one, came from there
  kSharedUnanswered,      // keys that the engine did not answer for, or not in time
  kSharedVanishedParts,   // that were there when asked, or whose object's head was
  kSharedRejectedValues,  // not sealed for their name, or of another object
  kSharedNotKept,         // restore points that came and found no room here
  kSharedReadBytes,       // of values
  kSharedWrittenBytes,
  kSharedWrittenObjects,
  kSharedWritesSkipped,  // restore points: the queue was full, or they had left before their turn
  kSharedLeaseWaits,     // callers that waited for another store's computation
  kSharedWritesFailed,   // values that the engine did not take
  kSharedPinsRenewed,    // pinned restore points, each time that their values' ends were put off
  kSharedPinsOverLimit,  // pinned ones that found no room among these, as often
  // Not counted: set when somebody asks.
  kHostGrowthsFailed,
  kGpuEvictedObjects,
  kUnloadedRestorePoints,    // not 0 before changes are taken
  kSharedUnreachableShards,  // 1 while none is known
  kLastFullScrubUnixS,
  kCount,
};

const char* CounterName(Counter counter);

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
