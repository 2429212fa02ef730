// SyncFolder: the names in a folder on stable storage. Private to disk/. A pure function of
// the file system.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_SYNC_FOLDER_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_SYNC_FOLDER_H_

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

namespace hearth {

inline rocksdb::IOStatus SyncFolder(rocksdb::FileSystem* files, const std::string& folder) {
  const rocksdb::IOOptions plain;
  std::unique_ptr<rocksdb::FSDirectory> names;
  const rocksdb::IOStatus opened = files->NewDirectory(folder, plain, &names, nullptr);
  return opened.ok() ? names->Fsync(plain, nullptr) : opened;
}

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_SYNC_FOLDER_H_
