// Backups of a store's data folder: complete, verified, and small if little data changed.
//
// A backup folder contains the last few backups of one store. Backups share unchanged tables, so a
// second backup copies only new tables. An interrupted backup is not listed; the next backup
// removes its files. The store's secret is copied, too (mode 0600), so keep the backup folder as
// confidential as the store's folder.
#ifndef HEARTH_CACHE_STORE_DISK_BACKUP_H_
#define HEARTH_CACHE_STORE_DISK_BACKUP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/verify.h"

namespace hearth {

// Number of backups that a backup folder keeps. Older backups are removed after a newer backup is
// complete.
inline constexpr uint32_t kKeptBackups = 3;

struct BackupReport {
  uint32_t id = 0;          // number of the backup; increases within the folder
  uint64_t bytes = 0;       // bytes of the complete backup, with files shared with earlier backups
  uint64_t new_bytes = 0;   // bytes that this backup copied
  bool has_secret = false;  // false: the secret is not in the data folder (--secret-file)
};

// Backs up a data folder that no store has open. kFailedPrecondition: a store has `dir` open, `dir`
// is no data folder, or `to` holds something other than backups.
absl::StatusOr<BackupReport> BackUpDataDir(const std::string& dir, const std::string& to);

struct RestoreReport {
  uint32_t id = 0;
  bool has_secret = false;
  VerifyReport verified;  // result of the verification of the restored folder
};

// Restores a backup to `dir`: the newest one, or the one with number `id`. Verifies every byte
// before `dir` is created. kDataLoss: the backup is damaged; nothing is created.
// kFailedPrecondition: `dir` is not empty.
absl::StatusOr<RestoreReport> RestoreDataDir(const std::string& from, const std::string& dir,
                                             uint32_t id = 0);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_BACKUP_H_
