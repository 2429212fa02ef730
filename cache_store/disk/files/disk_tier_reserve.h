// Reserve: a file that keeps room for a start on a full disk. Private to disk/.
//
// RocksDB writes a new manifest, options and log whenever it opens a database: without a little
// room a store that could still serve would not start. A file of the data folder keeps that room; a
// start that finds none deletes the file and tries again, and once there is room the file is made
// again for the next start.
// Thread safety: all methods from any thread. The file system outlives it.
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

  // Makes the file, as large as the disk has room for.
  void MakeFile();
  // Deletes the file. False when there was none.
  bool GiveUp();
  // Instead of MakeFile: NoteWrite makes the file.
  void MakeLater() { is_whole_.store(false); }
  // To be called after writes: completes the file once there is ample room, so that nothing else is
  // refused because of it. Where that is no use, as under a quota, after ever more of them.
  void NoteWrite();
  bool is_whole() const { return is_whole_.load(); }

 private:
  bool HasAmpleRoom() const;
  bool MakeWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  rocksdb::FileSystem* const files_;
  const std::string dir_;
  absl::Mutex mu_;  // who makes the file
  std::atomic<bool> is_whole_{true};
  std::atomic<uint32_t> pause_{0}, waited_{0};  // writes until the next try
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_
