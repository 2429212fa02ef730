// Backups of a store's data folder: whole, checked, and small when little changed.
//
// A backup folder holds a few states of one store. Tables that two states share are kept once, so a
// second backup copies only new tables. An interrupted backup is not listed, and the next one
// removes it. The secret of the keys is copied too, mode 0600: keep the folder as confidential as
// the store's own.
#ifndef HEARTH_CACHE_STORE_DISK_BACKUP_H_
#define HEARTH_CACHE_STORE_DISK_BACKUP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/verify.h"

namespace hearth {

// Number of states that a backup folder keeps. Older states are removed after a newer one is
// complete.
inline constexpr uint32_t kKeptBackups = 3;

struct BackupReport {
  uint32_t id = 0;          // increases within the folder
  uint64_t bytes = 0;       // bytes of the whole state, new or shared with earlier backups
  uint64_t new_bytes = 0;   // bytes copied by this backup
  bool has_secret = false;  // false: the operator keeps it elsewhere (--secret-file)
};

// Backs up a folder that no store has open. kFailedPrecondition: `dir` is in use or is no data
// folder, or `to` holds something else.
absl::StatusOr<BackupReport> BackUpDataDir(const std::string& dir, const std::string& to);

struct RestoreReport {
  uint32_t id = 0;
  bool has_secret = false;
  VerifyReport verified;  // result for the restored folder
};

// Restores a backup to `dir`: the newest, or backup `id`. Checks every byte before `dir` appears.
// If a byte is damaged, returns kDataLoss, which names the damage, and leaves nothing behind.
// kFailedPrecondition: `dir` is not empty.
absl::StatusOr<RestoreReport> RestoreDataDir(const std::string& from, const std::string& dir,
                                             uint32_t id = 0);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_BACKUP_H_
