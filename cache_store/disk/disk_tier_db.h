// Database: the open RocksDB under the disk tier. Private to disk/: no header for other rooms names
// it.
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
#include "cache_store/disk/files/mending_files.h"
#include "cache_store/disk/files/rocks_status.h"
#include "cache_store/disk/volume_budget.h"

namespace hearth {

// Column families, in the order of their handles. Names are on disk: never change one.
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

// Where RocksDB lives inside the data folder.
std::string DatabasePath(const std::string& dir);

// Of the volume of the database in the data folder `dir`. None: it says nothing, as some file
// systems in user space do, or a folder could not be read to its end. Folders of other users, as
// `lost+found`, are left out. `volume_bytes`: a test's; 0: as the volume says.
std::optional<uint64_t> MeasureFreeBytes(rocksdb::FileSystem* files, const std::string& dir);
std::optional<DiskRoom> MeasureRoom(rocksdb::FileSystem* files, const std::string& dir,
                                    uint64_t volume_bytes = 0);

// Holds the lock of the database's folder at `path`. OK too where there is no folder yet.
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

// An open database; closes it when it goes.
class Database {
 public:
  enum class Mode {
    kOwn,         // made when absent, mended or set aside when damaged
    kOwnAgain,    // as it was left by this process; kDataLoss when damaged
    kOwnToErase,  // the same, and the room of the reserve is left to erases: no compactions
    kAsIs,        // must be there, and is not mended
    kLook,        // read only: needs no lock, so the folder may be in use
    kServe,       // read only, with the lock: writes nothing. kDataLoss when a log is damaged
  };
  static absl::Status Open(const std::string& dir, Mode mode, std::unique_ptr<Database>* out,
                           const DiskTierOptions& options = {});
  // Whether the folder's disk takes writes, and has room for an opening and, with `flushes`, for
  // what the logs hold. Without, some of the reserve's room is enough.
  static absl::Status TryDisk(const std::string& dir, const DiskTierOptions& options, bool flushes);
  ~Database();

  rocksdb::DB* operator->() const { return db_; }
  rocksdb::DB* get() const { return db_; }
  const std::vector<rocksdb::ColumnFamilyHandle*>& families() const { return handles_; }
  rocksdb::ColumnFamilyHandle* family(Family family) const { return handles_[family]; }
  RocksFileSystem* files() const { return files_.get(); }
  // The damage found at opening, a line for each.
  const std::vector<std::string>& found() const { return found_; }
  // Logs that RocksDB read no further than damage: of a machine that stopped they may be torn.
  const std::vector<std::string>& cut_logs() const { return cut_logs_; }
  void Found(std::vector<std::string> lines) {
    found_.insert(found_.begin(), lines.begin(), lines.end());
  }
  // False: it was opened on a full disk, and moves nothing by itself.
  bool compacts() const { return compacts_; }
  // Null unless the mode is kOwn, kOwnAgain or kOwnToErase.
  Reserve* reserve() const { return reserve_.get(); }

 private:
  Database() = default;
  // Mends what is damaged, or sets it aside, and copes with a full disk.
  rocksdb::Status OpenAtAnyRate(const std::string& dir, Mode mode, rocksdb::DBOptions options,
                                std::vector<rocksdb::ColumnFamilyDescriptor> families,
                                const DiskTierOptions& tier);
  // Opens a database with confirmed damage, `why`. `open` opens it with `*options`.
  rocksdb::Status Mend(const std::string& dir, const std::string& why, rocksdb::DBOptions* options,
                       const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                       DamageConfirmation confirmation, absl::FunctionRef<rocksdb::Status()> open);
  void Close();

  std::shared_ptr<RocksFileSystem> files_;
  std::unique_ptr<rocksdb::Env> env_;
  std::shared_ptr<MendingFileSystem> mending_;  // null unless the database was mended
  std::unique_ptr<rocksdb::Env> mending_env_;
  std::unique_ptr<FolderLock> lock_;  // kServe's; the other modes leave it to RocksDB
  bool compacts_ = true;
  std::unique_ptr<Reserve> reserve_;
  rocksdb::DB* db_ = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
  std::vector<std::string> found_, cut_logs_;
};

// Reads that check each block's checksum first, since RocksDB asserts that a block makes sense:
// XXH3. For large slices see disk_tier_blocks.h.
rocksdb::ReadOptions VerifiedReads();

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_DB_H_
