// A file system that breaks on command and forgets what was not synced, between RocksDB and the
// real one.
//
// Fault model:
//   failed write     the nth write from now fails; nothing of it is in the file
//   short write      the same, with half of it in the file
//   failed sync      the nth sync from now fails; what it should have kept may be lost in a crash
//   full             writes fail with NoSpace until there is room again
//   little room      the same once so many bytes are written; of the write that is too large for
//                    what is left its first pages are in the file, and deleted files give theirs
//                    back
//   failed read      the nth read from now fails
//   flipped bit      the nth read from now has one bit changed
//   fails for a time a share of all operations of a kind fails, and of all reads, those of whole
//                    files too, has any one bit changed
//   death            every change fails from now on, as for a process that is no more
//   lost, reordered  a crash of the machine: of what was written to a file and not synced any pages
//                    may be missing (zeros, or the file ends before them), in any order; a file or
//                    a rename whose folder was not synced may never have been
// The guarantees under these faults: tests/cache_store/store/store_crash_test.cc. Thread safe.
#ifndef HEARTH_TESTS_SUPPORT_FAULTY_DISK_H_
#define HEARTH_TESTS_SUPPORT_FAULTY_DISK_H_

#include <rocksdb/env.h>
#include <rocksdb/io_status.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace hearth {

enum class DiskFault {
  kFailedWrite,
  kShortWrite,
  kFailedSync,
  kFailedFolderSync,
  kFailedRead,
  kFlippedBit
};

class FaultyDisk {
 public:
  FaultyDisk();
  ~FaultyDisk();
  rocksdb::Env* env() const { return env_.get(); }

  // The nth operation of its kind from now, counted from 1. One at a time of each kind.
  void Arm(DiskFault fault, int nth);
  void Disarm();
  // So many of a thousand operations of its kind, until it is set to none.
  void SetShare(DiskFault fault, int per_mille) {
    absl::MutexLock lock(&mu_);
    shares_[fault] = per_mille;
  }
  // A share strikes as usual after it would have struck `count` reads.
  void SpareReads(int count) {
    absl::MutexLock lock(&mu_);
    spared_reads_ = count;
  }
  int spared_reads() const {  // left
    absl::MutexLock lock(&mu_);
    return spared_reads_;
  }
  void SetFull(bool full) {
    absl::MutexLock lock(&mu_);
    full_ = full;
  }
  static constexpr uint64_t kAmple = ~uint64_t{0};
  void SetRoom(uint64_t bytes) {
    absl::MutexLock lock(&mu_);
    room_ = bytes;
  }
  uint64_t room() const {
    absl::MutexLock lock(&mu_);
    return room_;
  }
  void Die();
  // Files can only be written and read through the page cache.
  void SetLacksDirect();
  // How often a fault struck, and how often a file or a folder was to be synced.
  int struck() const;
  int syncs() const;

  // Leaves the files as the next start finds them. REQUIRES: nobody has a file open. The process
  // died, or with `machine` everything did; the disk works again.
  void Restart(bool machine, std::mt19937_64* random);

 private:
  friend class FaultyFileSystem;
  friend class FaultyFile;

  static constexpr uint64_t kPageBytes = 4096;
  // Of one file, whatever its names.
  struct Content {
    uint64_t bytes = 0;
    uint64_t synced_bytes = 0;
  };
  struct Rename {
    std::string folder, to, overwritten;  // the bytes that were there
  };

  bool Strikes(DiskFault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool StrikesByShare(DiskFault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Before a write of any kind.
  rocksdb::IOStatus Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How many of the bytes there is room for, which they then take.
  size_t TakeRoom(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (room_ == kAmple) return bytes;
    const size_t taken = bytes <= room_ ? bytes : room_ / kPageBytes * kPageBytes;
    room_ -= taken;
    if (taken < bytes) ++struck_;
    return taken;
  }
  void GiveRoom(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LosePages(const std::string& path, const Content& content, std::mt19937_64* random)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::map<DiskFault, int> armed_ ABSL_GUARDED_BY(mu_);
  std::map<DiskFault, int> shares_ ABSL_GUARDED_BY(mu_);
  int spared_reads_ ABSL_GUARDED_BY(mu_) = 0;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_){1};
  bool full_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t room_ ABSL_GUARDED_BY(mu_) = kAmple;
  bool dead_ ABSL_GUARDED_BY(mu_) = false;
  bool lacks_direct_ ABSL_GUARDED_BY(mu_) = false;
  int struck_ ABSL_GUARDED_BY(mu_) = 0;
  int syncs_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::shared_ptr<Content>> files_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> unsynced_names_ ABSL_GUARDED_BY(mu_);  // path -> folder
  std::vector<Rename> unsynced_renames_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_FAULTY_DISK_H_
