// Backups of a store's data folder: whole, checked, and small when little changed.
//
// A backup folder holds a few states of one store. Tables that two of them have in common are kept
// once, so the second backup copies only what is new. A backup that was interrupted is not listed,
// and the next one clears it away. The secret of the keys goes with it, mode 0600: keep the folder
// as confidential as the store's own.
#ifndef HEARTH_CACHE_STORE_DISK_BACKUP_H_
#define HEARTH_CACHE_STORE_DISK_BACKUP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cache_store/disk/verify.h"

namespace hearth {

// How many states a backup folder keeps; older ones go after a newer one is whole.
inline constexpr uint32_t kKeptBackups = 3;

struct BackupReport {
  uint32_t id = 0;          // counts up within the folder
  uint64_t bytes = 0;       // of the whole state, what was there already included
  uint64_t new_bytes = 0;   // copied now
  bool has_secret = false;  // false: it is in a file of the operator's (--secret-file)
};

// Of a folder that no store has open. kFailedPrecondition: `dir` is in use or no data folder, or
// `to` holds something else.
absl::StatusOr<BackupReport> BackUpDataDir(const std::string& dir, const std::string& to);

struct RestoreReport {
  uint32_t id = 0;
  bool has_secret = false;
  VerifyReport verified;  // of the restored folder
};

// Makes `dir` from a backup: the newest, or `id`. Every byte is checked before `dir` appears;
// kDataLoss names what is damaged, and nothing is left behind. kFailedPrecondition: `dir` is not
// empty.
absl::StatusOr<RestoreReport> RestoreDataDir(const std::string& from, const std::string& dir,
                                             uint32_t id = 0);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_BACKUP_H_
