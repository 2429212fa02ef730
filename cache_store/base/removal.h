// Removal: the reason why a restore point left the store. Events, metrics and Explain use the same
// name.
#ifndef HEARTH_CACHE_STORE_BASE_REMOVAL_H_
#define HEARTH_CACHE_STORE_BASE_REMOVAL_H_

#include <cassert>
#include <cstddef>
#include <iterator>

namespace hearth {

enum class Removal {
  kHostFull,     // only RAM held it, and RAM needed room
  kDiskFull,     // the disk needed room
  kQuota,        // its tenant reached its quota
  kExpired,      // its time to live ended
  kDropped,      // a caller dropped it
  kQuarantined,  // its bytes failed verification
  kLost,         // it was acknowledged, but a start did not find it on disk
};
inline constexpr size_t kRemovals = static_cast<size_t>(Removal::kLost) + 1;

// Names are part of the API: metric labels, WatchEvent.reason, BoundaryInfo.removed_by.
inline const char* RemovalName(Removal removal) {
  constexpr const char* kNames[] = {"host_full", "disk_full",   "quota", "expired",
                                    "dropped",   "quarantined", "lost"};
  static_assert(std::size(kNames) == kRemovals, "each Removal needs one name");
  assert(static_cast<size_t>(removal) < kRemovals);
  return kNames[static_cast<size_t>(removal)];
}

// The point was evicted to make room.
inline bool IsEviction(Removal removal) { return removal <= Removal::kQuota; }
// The prompt may be asked again: the point was neither dropped nor damaged.
inline bool MayReturn(Removal removal) { return removal <= Removal::kExpired; }

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REMOVAL_H_
