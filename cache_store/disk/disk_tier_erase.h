// Erases objects from the database: the record and each of the slices. Private to disk/.
//
// A deletion for each key, and none of a range: of a compaction that finds ranges and nothing that
// lives RocksDB 7.8 begins a table all the same, and where that one cannot be written it asserts
// that it has a first key.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_ERASE_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_ERASE_H_

#include <rocksdb/write_batch.h>

#include <cstdint>

#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Adds to `batch`. The layers are the record's; of an object whose record is unreadable or missing
// they are looked for, and where they cannot be listed either, the range goes after all.
void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_ERASE_H_
