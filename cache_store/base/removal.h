// Removal: the reason why a restore point left the store, one word for events, metrics and Explain
// alike.
#ifndef HEARTH_CACHE_STORE_BASE_REMOVAL_H_
#define HEARTH_CACHE_STORE_BASE_REMOVAL_H_

#include <cassert>
#include <cstddef>
#include <iterator>

namespace hearth {

enum class Removal {
  kHostFull,     // RAM was its only home, and others needed the room
  kDiskFull,     // others needed the room on disk
  kQuota,        // its tenant's limit
  kExpired,      // its time to live was over
  kDropped,      // someone asked for it
  kQuarantined,  // bytes of it failed verification
  kLost,         // it was acknowledged, and a start found its disk without it
};
inline constexpr size_t kRemovals = static_cast<size_t>(Removal::kLost) + 1;

// Names are part of the API: metric labels, WatchEvent.reason, BoundaryInfo.removed_by.
inline const char* RemovalName(Removal removal) {
  constexpr const char* kNames[] = {"host_full", "disk_full",   "quota", "expired",
                                    "dropped",   "quarantined", "lost"};
  static_assert(std::size(kNames) == kRemovals, "one name a removal");
  assert(static_cast<size_t>(removal) < kRemovals);
  return kNames[static_cast<size_t>(removal)];
}

// It left to make room, rather than because of its age, a request or damage.
inline bool IsEviction(Removal removal) { return removal <= Removal::kQuota; }
// Its prompt may well come back: it was neither unwanted nor broken.
inline bool MayReturn(Removal removal) { return removal <= Removal::kExpired; }

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REMOVAL_H_
