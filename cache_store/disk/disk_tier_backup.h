// Copying an open database to a backup folder, and checks that the files of a backup are whole.
// Private to disk/.
//
// RocksDB's backup engine sums the bytes that it copies: rot from before is in the copy, and the
// sum is right. So each new table is read with its checksums, and the copy is opened and its
// records are read. Tables of earlier backups are not read again.
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

// `info`: of the copy, with file details. `before` and `after`: the files of the backup folder
// without the copy, and with it. kDataLoss names the file. Rot in slices of objects that were
// erased since does not count.
absl::Status CheckBackup(const Database& source, const rocksdb::BackupInfo& info,
                         const FolderFiles& before, const FolderFiles& after);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_BACKUP_H_
