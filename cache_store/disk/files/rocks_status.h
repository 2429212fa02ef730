// Converts RocksDB's errors to absl::Status, and has helpers for its file system. Private to disk/:
// no RocksDB type leaves disk/.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_ROCKS_STATUS_H_
#define HEARTH_CACHE_STORE_DISK_FILES_ROCKS_STATUS_H_

#include <rocksdb/file_system.h>
#include <rocksdb/status.h>
#include <sys/stat.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hearth {

// Converts an error; `what` names the failed operation in the message.
absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what);

inline const rocksdb::IOOptions kPlain;

// Access mode of the folders that a store creates in its data folder. Only the owner has access,
// because the folders contain prompts.
inline constexpr mode_t kPrivateFolder = S_IRWXU;

// Syncs the folder, so that new file names in it survive a crash.
inline rocksdb::IOStatus SyncFolder(rocksdb::FileSystem* files, const std::string& folder) {
  std::unique_ptr<rocksdb::FSDirectory> names;
  const rocksdb::IOStatus opened = files->NewDirectory(folder, kPlain, &names, nullptr);
  return opened.ok() ? names->Fsync(kPlain, nullptr) : opened;
}

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_ROCKS_STATUS_H_
