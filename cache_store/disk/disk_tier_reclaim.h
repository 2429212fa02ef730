// Giving the space of erased slices back to the file system. Private to disk/.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Drops every blob file that is wholly dead. Then, only while blob files take more than
// `max_bytes`, moves what lives in the oldest of them to new ones, in steps of at most
// kRewriteBytes and one file. kCancelled: manual compactions were disabled.
//
// Why by hand: RocksDB's own garbage collection moves what lives in a fixed share of the oldest
// files whenever a compaction meets it, however little of them is dead, and its threshold for
// forcing one counts all files of a table together, which here is all files there are.
inline constexpr uint64_t kRewriteBytes = uint64_t{1} << 30;
absl::Status ReclaimBlobs(const Database& db, uint64_t max_bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_
