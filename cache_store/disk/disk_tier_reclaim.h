// Erasing objects from the database, and giving their space back to the file system. Private to
// disk/.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_

#include <rocksdb/write_batch.h>

#include <cstdint>

#include "absl/status/status.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Adds the erase of the record and of each slice to `batch`. The layers are the record's; of an
// object whose record is unreadable or missing they are looked for, and where they cannot be listed
// either, the range goes after all. Else a deletion for each key, and none of a range: of a
// compaction that finds ranges and nothing that lives RocksDB 7.8 begins a table all the same, and
// where that one cannot be written it asserts that it has a first key.
void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch);

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
