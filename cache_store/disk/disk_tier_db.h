// Database: an open RocksDB database of the disk tier. Private to disk/: no header outside disk/
// includes it.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_DB_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_DB_H_

#include <rocksdb/db.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache_store/disk/damage_confirmation.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/files/disk_tier_files.h"
#include "cache_store/disk/files/disk_tier_reserve.h"
#include "cache_store/disk/files/recovery_files.h"
#include "cache_store/disk/files/rocks_status.h"
#include "cache_store/disk/volume_budget.h"

namespace hearth {

// Column families, in the order of their handles. Never change a name: the names are stored on
// disk.
enum Family {
  kDefault = 0,
  kSlices,
  kObjects,
  kManifests,
  kFingerprints,
  kMeta,
  kTables,
  kFamilies
};
inline constexpr const char* kFamilyNames[kFamilies] = {
    "default", "slices", "objects", "manifests", "fingerprints", "meta", "tables"};

inline absl::string_view ToView(const rocksdb::Slice& slice) {
  return {slice.data(), slice.size()};
}

// Returns the path of RocksDB's folder in the data folder.
std::string DatabasePath(const std::string& dir);

// Measure the free bytes, or the files and the size, of the volume that has the database of data
// folder `dir`. nullopt: the volume reports no sizes (some user-space file systems), or a folder
// could not be read completely. Folders that this user may not list, such as `lost+found`, are
// skipped.
// `volume_bytes`: for tests; 0: measured.
std::optional<uint64_t> MeasureFreeBytes(rocksdb::FileSystem* files, const std::string& dir);
std::optional<DiskRoom> MeasureRoom(rocksdb::FileSystem* files, const std::string& dir,
                                    uint64_t volume_bytes = 0);

// Holds RocksDB's lock of the database folder `path`. OK also if the folder is absent.
class FolderLock {
 public:
  FolderLock(rocksdb::FileSystem* files, const std::string& path) : files_(files) {
    if (!files->FileExists(path, kPlain, nullptr).ok()) return;
    status_ = files->LockFile(path + "/LOCK", kPlain, &lock_, nullptr);
  }
  ~FolderLock() {
    if (lock_ != nullptr) files_->UnlockFile(lock_, kPlain, nullptr).PermitUncheckedError();
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  const rocksdb::Status& status() const { return status_; }

 private:
  rocksdb::FileSystem* const files_;
  rocksdb::FileLock* lock_ = nullptr;
  rocksdb::Status status_;
};

// An open database. The destructor closes it.
class Database {
 public:
  enum class Mode {
    kOwn,       // create if absent; repair a damaged database, or move it aside
    kOwnAgain,  // open again without repair; kDataLoss if damaged
    // open again without repair and without compactions, so that the reserved space is only used
    // for erases
    kOwnToErase,
    kAsIs,   // open an existing database without repair
    kLook,   // read-only without the lock, so that another process may use the folder
    kServe,  // read-only with the lock; kDataLoss if a log is damaged
  };
  static absl::Status Open(const std::string& dir, Mode mode, std::unique_ptr<Database>* out,
                           const DiskTierOptions& options = {});
  // Checks that the disk accepts writes and has space for opening the database. With `flushes`,
  // there must also be space for the contents of the logs; otherwise a part of the reserved space
  // suffices.
  static absl::Status TryDisk(const std::string& dir, const DiskTierOptions& options, bool flushes);
  ~Database();

  rocksdb::DB* operator->() const { return db_; }
  rocksdb::DB* get() const { return db_; }
  const std::vector<rocksdb::ColumnFamilyHandle*>& families() const { return handles_; }
  rocksdb::ColumnFamilyHandle* family(Family family) const { return handles_[family]; }
  RocksFileSystem* files() const { return files_.get(); }
  // Descriptions of the damage that Open() found.
  const std::vector<std::string>& found() const { return found_; }
  // Logs that RocksDB could read only up to a damaged place. After a machine crash this may be a
  // torn end.
  const std::vector<std::string>& cut_logs() const { return cut_logs_; }
  void Found(std::vector<std::string> lines) {
    found_.insert(found_.begin(), lines.begin(), lines.end());
  }
  // Returns whether automatic compactions run; false if the database was opened on a full disk.
  bool compacts() const { return compacts_; }
  // Returns the reserve file; null unless the mode is kOwn, kOwnAgain or kOwnToErase.
  Reserve* reserve() const { return reserve_.get(); }

 private:
  Database() = default;
  // Opens the database; repairs a damaged database or moves it aside, and handles a full disk.
  rocksdb::Status OpenOrRepair(const std::string& dir, Mode mode, rocksdb::DBOptions options,
                               std::vector<rocksdb::ColumnFamilyDescriptor> families,
                               const DiskTierOptions& tier);
  // Repairs a database, of which `why` describes the confirmed damage. `open` opens it with
  // `*options`.
  rocksdb::Status Repair(const std::string& dir, const std::string& why,
                         rocksdb::DBOptions* options,
                         const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                         DamageConfirmation confirmation,
                         absl::FunctionRef<rocksdb::Status()> open);
  void Close();

  std::shared_ptr<RocksFileSystem> files_;
  std::unique_ptr<rocksdb::Env> env_;
  // null unless the database was repaired at opening
  std::shared_ptr<RecoveryFileSystem> recovery_files_;
  std::unique_ptr<rocksdb::Env> recovery_env_;
  // set only in mode kServe; in the other modes RocksDB holds the lock
  std::unique_ptr<FolderLock> lock_;
  bool compacts_ = true;
  std::unique_ptr<Reserve> reserve_;
  rocksdb::DB* db_ = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
  std::vector<std::string> found_, cut_logs_;
};

// Returns options for reads that verify a block's XXH3 checksum before parsing the block, because
// RocksDB asserts that blocks are valid. For large slices see disk_tier_blocks.h.
rocksdb::ReadOptions VerifiedReads();

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_DB_H_
