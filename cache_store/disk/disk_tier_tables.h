// Tables of slices: what a publish of megabytes becomes on disk. Private to disk/.
//
// Written through the log, a slice is written twice, and a third time when its blob file is
// rewritten. A table is written once, beside the log, and then linked into the database as it is
// (RocksDB's SST ingestion); erased numbers lie together, so most tables die whole and go without
// being read again. Keys as in the family `slices`, which keeps what is too small for a table.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_

#include <atomic>
#include <cstdint>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/base/tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

class SliceTables {
 public:
  // `dir`: the data folder. Removes what a crash left half written.
  static absl::Status Prepare(const std::string& dir);
  SliceTables(const Database* db, const std::string& dir) : db_(db), dir_(dir) {}

  // Readable when it returns, and on stable storage. From any thread.
  // REQUIRES: the records of the slices' objects were written.
  rocksdb::Status Write(absl::Span<const SliceWrite> slices);

  // Tables that hold nothing live now are not dropped by this process: what named it may be lost.
  void KeepDead();
  // Of a file that TakeOver is to get.
  std::string NewPath();
  // As Write, of a table that Write made before, for this folder or another. The file is gone then.
  rocksdb::Status TakeOver(const std::string& path);

  // Drops the tables that are wholly dead. Then, only while tables take more than `max_bytes`,
  // rewrites those of which most is dead. `*left_bytes`: what tables take after. kCancelled: manual
  // compactions were disabled.
  absl::Status Reclaim(uint64_t max_bytes, uint64_t* left_bytes);

 private:
  void Remove(const std::string& path);

  const Database* const db_;
  const std::string dir_;
  std::atomic<uint64_t> next_file_{0};
  // Tables are dropped by range of keys: none may come into a range between its check and its drop.
  absl::Mutex ranges_mu_;
  std::set<std::string> kept_ ABSL_GUARDED_BY(ranges_mu_);  // first keys
};

// Wherever the slice lies.
rocksdb::Status GetSlice(const Database& db, const std::string& key, rocksdb::PinnableSlice* value);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_TABLES_H_
