// Backs up an open database to a backup folder. Private to disk/.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_BACKUP_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_BACKUP_H_

#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {

// Backs up `db` while it is read and written. The backup contains the state at one moment during
// the call. `dir`: the data folder, which has the secret.
absl::StatusOr<BackupReport> BackUpDatabase(const Database& db, const std::string& dir,
                                            const std::string& to);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_BACKUP_H_
