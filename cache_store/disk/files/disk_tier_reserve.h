// Reserve: a file that reserves space for a start on a full disk. Private to disk/.
//
// RocksDB writes a new manifest, options and log whenever it opens a database: without space a
// store that could still serve would not start. A file of the data folder reserves this space. A
// start without space deletes the file and retries; when there is space again, the file is made
// again. Thread safety: all methods from any thread. The file system outlives this object.
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

  // Makes the file, as large as possible.
  void MakeFile();
  // Deletes the file. Returns false if it was absent.
  bool GiveUp();
  // Instead of MakeFile(): a later NoteWrite() makes the file.
  void MakeLater() { is_whole_.store(false); }
  // Call after writes: completes the file when there is ample space, so that the file does not
  // cause other writes to fail. If that fails, as under a quota, retries after increasingly many
  // writes.
  void NoteWrite();
  bool is_whole() const { return is_whole_.load(); }

 private:
  bool HasAmpleRoom() const;
  bool MakeWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  rocksdb::FileSystem* const files_;
  const std::string dir_;
  absl::Mutex mu_;  // held while the file is made
  std::atomic<bool> is_whole_{true};
  std::atomic<uint32_t> pause_{0}, waited_{0};  // writes to wait, writes waited
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_RESERVE_H_
