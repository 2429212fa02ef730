// Logs that are damaged: before RocksDB reads them, what it would not read on from is taken out.
// Private to disk/.
//
// RocksDB ends at the first record that is not whole, in the last 32 KiB without a word, and what
// was written after that is lost. A flipped bit is put right; a record that cannot be is left out.
// The log as it was is kept in the folder "lost" of the data folder.
//
// Where the machine stopped, what was not synced may have holes and torn ends, and nothing that is
// promised behind them. Then the logs end there, and are cut off: read at a later start, the rest
// would go by numbers that others have by then.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_SALVAGE_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_SALVAGE_H_

#include <rocksdb/file_system.h>

#include <string>

#include "absl/status/status.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Of the database of `dir`, which is not open. `boot`: of the machine, now; by it and the promises
// it is known whether the machine stopped since the last session. `*found`: a line for each log
// that was damaged. `*logged`: what those logs still say was written; of that some may be lost.
// Null: they are only looked at.
absl::Status SalvageLogs(rocksdb::FileSystem* files, const std::string& dir, const BootId& boot,
                         FoundDamage* found, LoggedNumbers* logged);

// A start knows what was lost: the next one need not ask those logs again.
void SettleLogs(rocksdb::FileSystem* files, const std::string& dir);

// Takes the objects out of which slices are lost: those that damaged logs wrote, and those of
// tables that RocksDB was about to delete.
absl::Status DropDoubtedObjects(const Database& db, DiskContents* contents);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_SALVAGE_H_
