// Replaces tables that are gone or cannot be opened. Private to disk/.
//
// RocksDB does not open a database when one table is missing, truncated, or damaged in its index or
// footer, and an iterator that meets such a table shows nothing at all. That table's contents are
// lost either way; those of the other tables need not be. So the table is moved to the folder
// "lost" of the data folder, and replaced by one of the same size that only erases a key that never
// existed.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_LOST_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_LOST_H_

#include <rocksdb/db.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache_store/disk/files/rocks_status.h"

namespace hearth {

// Whether each table of an open database can be opened. Skips the families in `skipped`, which have
// thousands of tables: losses there are found by reads.
bool AllTablesOpen(rocksdb::DB* db, const rocksdb::Options& options,
                   const std::vector<std::string>& skipped);

// For the database in `path`, which is not open. `*found`: a line for each table that was replaced
// or repaired.
absl::Status ReplaceLostTables(const rocksdb::DBOptions& options, const std::string& path,
                               const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                               FoundDamage* found);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_LOST_H_
