// SliceTables: writes the slices of large publishes as whole tables. Private to disk/.
//
// Written through the log, a slice is written twice. A table is written once, beside the log, and
// then linked into the database as it is (RocksDB's SST ingestion); erased numbers lie together, so
// most tables die whole and are dropped unread. Keys as in the family `slices`, which keeps smaller
// writes.
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
  // `dir`: the data folder. Removes tables that a crash left half written.
  static absl::Status Prepare(const std::string& dir);
  SliceTables(const Database* db, const std::string& dir) : db_(db), dir_(dir) {}

  // Writes a table of the slices beside the database, to `*path`, from any thread.
  rocksdb::Status Make(absl::Span<const SliceWrite> slices, std::string* path);
  // Links it into the database: readable when it returns, and on stable storage. REQUIRES: the
  // records of the slices' objects were written.
  rocksdb::Status TakeOver(const std::string& path);

  // Drops the tables of either family of slices that are wholly dead. Then, only while tables take
  // more than `max_bytes`, rewrites those of which most is dead. kCancelled: manual compactions
  // were disabled.
  absl::Status Reclaim(uint64_t max_bytes);
  // No table is rewritten, and what a flush has written is dropped without a compaction, too.
  static constexpr uint64_t kOnlyDead = ~uint64_t{0};

 private:
  void Remove(const std::string& path);

  const Database* const db_;
  const std::string dir_;
  std::atomic<uint64_t> next_file_{0};
  // Tables are dropped by range of keys: none may enter a range between its check and its drop.
  absl::Mutex ranges_mu_;
};

// Has the page cache forget the files that may hold slices of this object.
void DropCached(const Database& db, uint64_t object);

// Adds the erase of the record and of each slice to `batch`: of the record's layers, or where it
// cannot be read of all that an object may have. Never of a range of keys: a compaction that finds
// ranges and nothing live makes RocksDB 7.8 begin a table all the same, and if that cannot be
// written it asserts that it has a first key.
void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch);

rocksdb::Status GetSlice(const Database& db, const StoredSlice& slice,
                         rocksdb::PinnableSlice* value);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_
