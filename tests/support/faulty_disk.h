// A file system that fails on command and forgets unsynced data. It wraps the real file system
// under RocksDB.
//
// Fault model:
//   failed write      the nth write from now fails; none of its bytes are in the file
//   short write       the nth write from now fails; half of its bytes are in the file
//   failed sync       the nth sync from now fails; a crash may lose the data that it should sync
//   full              writes fail with NoSpace until there is space again
//   little room       writes fail with NoSpace once a number of bytes is written; of the first
//                     failed write, the first pages are written. Deleted files free their space
//   failed read       the nth read from now fails
//   flipped bit       the nth read from now has one bit changed
//   fails for a time  a share of all operations of a kind fails; for reads, also of whole files, a
//                     random bit is changed in a share of the reads
//   death             every change fails from now on, as for a dead process
//   lost, reordered   a crash of the machine: pages that were written but not synced may be missing
//                     (zeros, or the file ends before them), in any order; a new file or a rename
//                     may be missing if its folder was not synced
// Guarantees under these faults: tests/cache_store/store/store_crash_test.cc. Thread safe.
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

  // Makes the nth operation of the fault's kind fail, counted from 1. At most one fault of each
  // kind can be armed.
  void Arm(DiskFault fault, int nth);
  void Disarm();
  // Makes `per_mille` of every thousand operations of the fault's kind fail, at random, until set
  // to 0.
  void SetShare(DiskFault fault, int per_mille) {
    absl::MutexLock lock(&mu_);
    shares_[fault] = per_mille;
  }
  // Lets the next `count` reads succeed that SetShare would have made fail. After them reads fail
  // again.
  void SpareReads(int count) {
    absl::MutexLock lock(&mu_);
    spared_reads_ = count;
  }
  int spared_reads() const {  // returns how many reads are still spared
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
  // Makes the disk refuse direct I/O, so that files can only be accessed through the page cache.
  void SetLacksDirect();
  // Return how many faults have occurred, and how many syncs of files and folders were requested.
  int struck() const;
  int syncs() const;

  // Changes the files to a state that a crash of the process may leave, or of the machine if
  // `machine` is true. After it the disk works again. REQUIRES: no process has a file open.
  void Restart(bool machine, std::mt19937_64* random);

 private:
  friend class FaultyFileSystem;
  friend class FaultyFile;

  static constexpr uint64_t kPageBytes = 4096;
  // Records about one file, independent of its names.
  struct Content {
    uint64_t bytes = 0;
    uint64_t synced_bytes = 0;
  };
  struct Rename {
    // overwritten: the content that `to` had before the rename
    std::string folder, to, overwritten;
  };

  bool Strikes(DiskFault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool StrikesByShare(DiskFault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Called before each write. Returns an error if the write must fail.
  rocksdb::IOStatus Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Subtracts a write from the free space. Returns how many bytes of the write fit.
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
  // folder of each file whose name is not synced yet, by path
  std::map<std::string, std::string> unsynced_names_ ABSL_GUARDED_BY(mu_);
  std::vector<Rename> unsynced_renames_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_FAULTY_DISK_H_
