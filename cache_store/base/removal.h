// Removal: the reason why a restore point was removed from the store. Events, metrics and Explain
// use the names of these reasons.
#ifndef HEARTH_CACHE_STORE_BASE_REMOVAL_H_
#define HEARTH_CACHE_STORE_BASE_REMOVAL_H_

#include <cassert>
#include <cstddef>
#include <iterator>

namespace hearth {

enum class Removal {
  kHostFull,     // evicted to free RAM; the disk had no copy
  kDiskFull,     // evicted to free disk space
  kQuota,        // evicted because its tenant reached the quota
  kExpired,      // the restore point's time to live ended
  kDropped,      // a caller dropped the restore point
  kQuarantined,  // bytes of the restore point failed verification
  kLost,         // acknowledged to the publisher, but not found on disk when the store started
};
inline constexpr size_t kRemovals = static_cast<size_t>(Removal::kLost) + 1;

// Returns the name of the reason. Names are part of the API: metric labels, WatchEvent.reason,
// BoundaryInfo.removed_by.
inline const char* RemovalName(Removal removal) {
  constexpr const char* kNames[] = {"host_full", "disk_full",   "quota", "expired",
                                    "dropped",   "quarantined", "lost"};
  static_assert(std::size(kNames) == kRemovals, "each Removal needs one name");
  assert(static_cast<size_t>(removal) < kRemovals);
  return kNames[static_cast<size_t>(removal)];
}

// Returns whether the restore point was evicted to free space.
inline bool IsEviction(Removal removal) { return removal <= Removal::kQuota; }
// Returns whether a later request may publish the restore point again: it was neither dropped nor
// damaged.
inline bool MayReturn(Removal removal) { return removal <= Removal::kExpired; }

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REMOVAL_H_
