// Reserve: a file that reserves disk space, so that the store can start on a full disk. Private to
// disk/.
//
// When RocksDB opens a database, it writes a new manifest, options file and log. If a start finds
// no space for them, it deletes the reserve file and tries again. When there is space again, the
// reserve file is created again. Thread safety: all methods from any thread. The file system
// outlives this object.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_

#include <rocksdb/file_system.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/disk_sizes.h"

namespace hearth {

class Reserve {
 public:
  Reserve(rocksdb::FileSystem* files, std::string dir) : files_(files), dir_(std::move(dir)) {}

  // Creates the reserve file, as large as free space allows.
  void MakeFile();
  // Deletes the reserve file. Returns false if it was absent.
  bool GiveUp();
  // Lets a later NoteWrite() create the reserve file.
  void MakeLater() { is_whole_.store(false); }
  // Call after each write. Completes the reserve file when ample space is free, so that the file
  // does not make other writes fail. If that fails (for example because of a quota), tries again
  // after more and more writes.
  void NoteWrite();
  bool is_whole() const { return is_whole_.load(); }

 private:
  bool HasAmpleRoom() const;
  bool MakeWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  rocksdb::FileSystem* const files_;
  const std::string dir_;
  absl::Mutex mu_;  // held while the reserve file is written
  std::atomic<bool> is_whole_{true};
  // number of writes to wait for, and writes since the last attempt
  std::atomic<uint32_t> pause_{0}, waited_{0};
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_
