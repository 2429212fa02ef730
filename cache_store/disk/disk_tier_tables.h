// SliceTables: writes the slices of large publishes as table files (SST). Private to disk/.
//
// A slice that goes through the log is written to disk twice. A table is written once, outside the
// log, and then linked into the database (RocksDB's SST ingestion). Objects are erased in ranges of
// adjacent numbers, so most tables lose all their slices together and are deleted without being
// read. The keys are the same as in the family `slices`, which has smaller writes.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_

#include <rocksdb/write_batch.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/base/tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

class SliceTables {
 public:
  // Removes partly written tables that a crash left. `dir`: the data folder.
  static absl::Status Prepare(const std::string& dir);
  SliceTables(const Database* db, const std::string& dir) : db_(db), dir_(dir) {}

  // Writes the slices as a table file next to the database, and sets `*path` to its path. Thread
  // safe.
  rocksdb::Status Make(absl::Span<const SliceWrite> slices, std::string* path);
  // Links the table file into the database. On return its slices are readable and on stable
  // storage. REQUIRES: the records of the slices' objects were written.
  rocksdb::Status TakeOver(const std::string& path);

  // Deletes tables without live slices, in both families of slices. Then, while tables take more
  // than `max_bytes`, rewrites tables, beginning with those that have the most erased bytes.
  // kCancelled: manual compactions are disabled.
  absl::Status Reclaim(uint64_t max_bytes);
  // Value of `max_bytes` with which Reclaim rewrites no table, and deletes tables of level 0
  // without a compaction.
  static constexpr uint64_t kOnlyDead = ~uint64_t{0};

 private:
  void Remove(const std::string& path);

  const Database* const db_;
  const std::string dir_;
  std::atomic<uint64_t> next_file_{0};
  // Held while tables are deleted by key range, so that no new table is linked into a range between
  // the check and the deletion.
  absl::Mutex ranges_mu_;
};

// Drops the files that may contain slices of the object from the page cache.
void DropCached(const Database& db, uint64_t object);

// Adds erases of the object's record and slices to `batch`. If the record cannot be read, erases
// all possible layers. Never erases a key range: if a compaction finds only range erases, RocksDB
// 7.8 starts a table, and if writing it fails, asserts that the table has a first key.
void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch);

rocksdb::Status GetSlice(const Database& db, const StoredSlice& slice,
                         rocksdb::PinnableSlice* value);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_
