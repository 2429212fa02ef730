// Erasing objects from the database, and giving their space back to the file system. Private to
// disk/.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_

#include <rocksdb/write_batch.h>

#include <cstdint>

#include "absl/status/status.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Adds the erase of the record and of each slice to `batch`, by the record's layers. Without a
// readable record the layers are searched for, and where they cannot be listed either, the whole
// range is deleted. Otherwise there is a deletion for each key and none of a range: a compaction
// that finds ranges and nothing live makes RocksDB 7.8 begin a table all the same, and if that
// cannot be written it asserts that it has a first key.
void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch);

// Drops every blob file that is wholly dead. Then, only while blob files take more than
// `max_bytes`, moves live values out of the oldest ones to new ones, in steps of at most
// kRewriteBytes and one file. kCancelled: manual compactions were disabled.
//
// Why by hand: RocksDB's own garbage collection moves the live values of a fixed share of the
// oldest files in every compaction, however few of them are dead, and its threshold for forcing a
// collection counts all files of a table together, which here are all files.
inline constexpr uint64_t kRewriteBytes = uint64_t{1} << 30;
absl::Status ReclaimBlobs(const Database& db, uint64_t max_bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_RECLAIM_H_
