// Converts RocksDB's statuses to absl::Status; helpers for its file system. Private to disk/: no
// RocksDB error leaves disk/.
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

// `what` names the failed operation in the message.
absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what);

inline const rocksdb::IOOptions kPlain;

// Mode of the folders that a store makes in its data folder; they contain prompts.
inline constexpr mode_t kPrivateFolder = S_IRWXU;

// Syncs the folder, so that its file names are on stable storage.
inline rocksdb::IOStatus SyncFolder(rocksdb::FileSystem* files, const std::string& folder) {
  std::unique_ptr<rocksdb::FSDirectory> names;
  const rocksdb::IOStatus opened = files->NewDirectory(folder, kPlain, &names, nullptr);
  return opened.ok() ? names->Fsync(kPlain, nullptr) : opened;
}

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_ROCKS_STATUS_H_
