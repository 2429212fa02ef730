// Copying an open database to a backup folder, and checks that the files of a backup are whole.
// Private to disk/.
//
// RocksDB's engine copies bytes and sums them as they come: what had rotted before is rotten in the
// copy, and the sum is right. So each table that was copied now is read with its checksums, and the
// copy is opened and its records and blobs are read. Tables of earlier backups are not read again.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_BACKUP_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_BACKUP_H_

#include <rocksdb/utilities/backup_engine.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Reads and writes go on meanwhile; the backup is the state at one moment of the call. `dir`: the
// data folder, for its secret.
absl::StatusOr<BackupReport> BackUpDatabase(const Database& db, const std::string& dir,
                                            const std::string& to);

// All files of a folder and its folders: path and bytes.
using FolderFiles = std::map<std::string, uint64_t>;
FolderFiles FilesUnder(const std::string& folder);

// `info`: of the copy, with file details. `before` and `after`: what was in the backup folder
// without it, and is.
// kDataLoss names the file. Rot in the slices of objects that were erased since is none.
absl::Status CheckBackup(const Database& source, const rocksdb::BackupInfo& info,
                         const FolderFiles& before, const FolderFiles& after);

// Of a stopped store's folder, which is only read. kDataLoss: what was promised is not there.
absl::Status CheckPromised(const std::string& dir);

// Of one that is open and holds deletes back. kDataLoss: RocksDB would have deleted what is named.
absl::Status CheckNothingWasToGo(const Database& source);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_BACKUP_H_
