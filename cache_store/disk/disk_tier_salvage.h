// Repairs damaged logs before RocksDB reads them: removes the records that it would stop at.
// Private to disk/.
//
// RocksDB stops at the first record that is not whole, in the last 32 KiB without an error, and
// loses everything written after it. A flipped bit is corrected; a record beyond that is left out.
// The log as it was is kept in the folder "lost" of the data folder.
//
// After a crash of the machine the unsynced part may have holes and torn ends; nothing behind them
// was promised. Then the logs are cut off there: a later start would find the rest under numbers
// that others have by then.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_SALVAGE_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_SALVAGE_H_

#include <rocksdb/file_system.h>

#include <string>

#include "absl/status/status.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// For the database of `dir`, which is not open. `boot`: the machine's, now; with the promises it
// tells whether the machine stopped since the last session. `*found`: a line for each damaged log.
// `*logged`: the records that those logs still name, some of which may be lost. Null: only looks at
// the logs.
absl::Status SalvageLogs(rocksdb::FileSystem* files, const std::string& dir, const BootId& boot,
                         FoundDamage* found, LoggedNumbers* logged);

// This start knows all losses: the next one need not scan those logs again.
void SettleLogs(rocksdb::FileSystem* files, const std::string& dir);

// Removes objects that lost slices, among those written by damaged logs or in tables that RocksDB
// was about to delete.
absl::Status DropDoubtedObjects(const Database& db, DiskContents* contents);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_SALVAGE_H_
