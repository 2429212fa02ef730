// Tables that are gone, or cannot be opened any more. Private to disk/.
//
// RocksDB does not open a database of which one table is missing, cut off or damaged where its
// index or its footer is, and an iterator that meets such a table shows nothing at all. What it
// held is lost either way; what the other tables hold need not be. So the table is moved to the
// folder "lost" of the data folder, and in its place is put one of the same size that holds the
// erase of a key that never was.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_LOST_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_LOST_H_

#include <rocksdb/db.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache_store/disk/files/rocks_status.h"

namespace hearth {

// Whether each table of an open database can be opened, those of the families in `skipped` aside;
// there are thousands of these, and what is lost of them is found when it is read.
bool AllTablesOpen(rocksdb::DB* db, const rocksdb::Options& options,
                   const std::vector<std::string>& skipped);

// Of the database in `path`, which is not open. `*found`: a line for each table that was replaced,
// or put right.
absl::Status ReplaceLostTables(const rocksdb::DBOptions& options, const std::string& path,
                               const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                               FoundDamage* found);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_LOST_H_
