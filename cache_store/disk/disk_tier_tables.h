// SliceTables: writes the slices of large publishes as whole tables. Private to disk/.
//
// A slice written through the log is written twice. A table is written once, outside the log, and
// then linked into the database (RocksDB's SST ingestion). Erased numbers are adjacent, so most
// tables die completely and are dropped without reading. The keys are those of the family `slices`,
// which holds smaller writes.
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
  // Removes tables that a crash left partly written. `dir`: the data folder.
  static absl::Status Prepare(const std::string& dir);
  SliceTables(const Database* db, const std::string& dir) : db_(db), dir_(dir) {}

  // Writes a table of the slices next to the database and sets `*path`. Any thread may call it.
  rocksdb::Status Make(absl::Span<const SliceWrite> slices, std::string* path);
  // Links the table into the database: on return it is readable and on stable storage. REQUIRES:
  // the records of the slices' objects were written.
  rocksdb::Status TakeOver(const std::string& path);

  // Drops completely dead tables of both slice families. Then, while tables take more than
  // `max_bytes`, rewrites tables, those with the largest dead part first. kCancelled: manual
  // compactions are disabled.
  absl::Status Reclaim(uint64_t max_bytes);
  // Value of `max_bytes` that rewrites no table, and drops flushed tables without a compaction.
  static constexpr uint64_t kOnlyDead = ~uint64_t{0};

 private:
  void Remove(const std::string& path);

  const Database* const db_;
  const std::string dir_;
  std::atomic<uint64_t> next_file_{0};
  // Tables are dropped by key range: no table may enter a range between the check and the drop.
  absl::Mutex ranges_mu_;
};

// Drops files that may hold slices of the object from the page cache.
void DropCached(const Database& db, uint64_t object);

// Adds erases of the object's record and slices to `batch`. If the record cannot be read, erases
// all possible layers. Never erases a key range: a compaction that finds only ranges makes RocksDB
// 7.8 start a table, and if that write fails, RocksDB asserts that the table has a first key.
void EraseObject(const Database& db, uint64_t number, rocksdb::WriteBatch* batch);

rocksdb::Status GetSlice(const Database& db, const StoredSlice& slice,
                         rocksdb::PinnableSlice* value);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_
