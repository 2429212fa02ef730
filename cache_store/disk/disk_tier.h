// DiskTier: stores slices and manifests in RocksDB. The only durable tier, and the only user of
// RocksDB.
//
// Column families: `tables` (object number and layer -> bytes, in files that are written as a
// whole, see disk_tier_tables.h); `slices` (the same for small writes, through the log); `objects`
// (object number -> record of the object's slices); `manifests` (number -> restore point);
// `fingerprints`; `meta`. Numbers only increase, so slices that were written together are adjacent,
// and evicting them frees whole files.
//
// An object's record is written before its slices, and the slices before any manifest that uses the
// object. Tables are linked before WriteAll returns, and the log keeps its order. So if a manifest
// survived a crash, its objects survived. Thread safety: all methods from any thread. After a
// failed change, the next change closes the database and opens it as at a start, because RocksDB
// 7.8 may wait forever if it resumes after an error. If the database cannot be opened for writing,
// or the disk is full at a start, it is opened read-only. Errors of RocksDB are converted to
// absl::Status.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/tier.h"
#include "cache_store/base/warnings.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/point_count.h"
#include "cache_store/disk/stored_records.h"
#include "cache_store/disk/volume_budget.h"

namespace rocksdb {
class Env;
}

namespace hearth {

// The records of a data folder, read once when the store starts: without slices, and only the
// numbers of manifests.
struct DiskContents {
  std::vector<ObjectRecord> objects;  // in ascending order of their numbers
  std::vector<uint64_t> manifests;    // manifest numbers in ascending order
  std::vector<FingerprintRecord> fingerprints;
  std::vector<uint64_t> pinned;  // manifest numbers of pinned restore points
  // manifest number, and Unix seconds of the last use
  std::vector<std::pair<uint64_t, uint64_t>> uses;
  std::vector<uint64_t> unreadable_objects;
  // The highest object number on disk, including slices without an object record (a table may
  // survive a crash that its record did not).
  uint64_t last_number = 0;
  uint64_t drops = 0;  // number of the last acknowledged drop
  // Number of restore points that are missing compared with the saved count (point_count.h).
  uint64_t lost_points = 0;
  // True: unsynced data may be missing, because the machine stopped; the remaining data is intact.
  bool may_lack = false;
  // Descriptions of damaged files and of damaged ranges of records.
  std::vector<std::string> damage;
};

struct DiskTierOptions {
  static constexpr absl::Duration kPause = absl::Seconds(1);
  rocksdb::Env* env = nullptr;    // for tests: wraps the file system, and outlives the tier
  absl::Duration pause = kPause;  // pause after a failed attempt to reopen the database
  // For tests: replaces the pauses before a start repeats a read. Null: sleeps.
  std::function<void(absl::Duration)> wait;
  // as StoreOptions::background_disk_bytes_per_s
  uint64_t background_bytes_per_s = uint64_t{128} << 20;
  std::optional<BootId> boot;          // for tests: the machine's boot id; nullopt: the real one
  uint64_t volume_bytes = 0;           // for tests: size of the volume; 0: measured
  std::shared_ptr<Warnings> warnings;  // receives errors of the database; null: discards them
};

class DiskTier : public SliceTier {
 public:
  // Version of the data folder's format; folders of other versions are refused.
  static constexpr uint64_t kFormatVersion = 9;
  // Writes smaller than this go to the family `slices` instead of a table of their own. 64 GiB of
  // tables of this size are 65,536 files.
  static constexpr uint64_t kMinTableBytes = uint64_t{1} << 20;

  // Opens or creates a data folder. Repairs a damaged database, or moves it aside and creates a new
  // one (disk_tier_recovery.h). kFailedPrecondition: another process has the folder open, or the
  // folder has another format version or secret. `secret_check`: digest of the secret, stored at
  // creation and compared at each later opening.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const std::string& dir,
                                                        const std::string& secret_check,
                                                        const DiskTierOptions& options = {});
  // Returns the records that Open() has read. Call once, before all other methods.
  virtual DiskContents Load() = 0;
  // Reads manifests from disk. nullopt: the manifest is absent or damaged. After an error, read
  // again: an error says nothing about the manifests. Fastest if the numbers ascend.
  virtual absl::StatusOr<std::vector<std::optional<ManifestRecord>>> ReadManifests(
      absl::Span<const uint64_t> numbers) = 0;

  // Returns whether new entries may be written. kResourceExhausted: the remaining space is reserved
  // for erases (see ReleaseReserve). Call before the first write of a publish.
  virtual absl::Status MayAdd() = 0;
  // Writes the record of an object, before the object's slices. The object stays invisible until a
  // manifest uses it.
  virtual absl::Status WriteObject(const ObjectRecord& object) = 0;
  // Writes manifests as one atomic batch. With `sync`, this batch and everything written before it
  // are on stable storage on return. After an error, a part may be on disk.
  virtual absl::Status CommitManifests(const std::vector<ManifestRecord>& manifests,
                                       const FingerprintRecord& fingerprint, bool sync) = 0;
  // Erases manifests. Not atomic: after an error, some of them may be erased.
  virtual absl::Status EraseManifests(absl::Span<const uint64_t> manifests) = 0;
  // Makes all erases before this call permanent, whatever is damaged later.
  virtual absl::Status SettleErases() = 0;
  virtual absl::Status SetPinned(uint64_t manifest, bool pinned) = 0;
  // Writes the last uses of restore points, as hints that a crash may lose. Does not reopen the
  // database after an error.
  virtual absl::Status NoteUses(absl::Span<const std::pair<uint64_t, absl::Time>> uses) = 0;
  virtual absl::Status Sync() = 0;
  // Reads an object's record from disk. kNotFound: absent. kDataLoss: damaged.
  virtual absl::StatusOr<ObjectRecord> ReadObject(uint64_t number) = 0;
  virtual absl::StatusOr<ManifestRecord> ReadManifest(uint64_t number) = 0;
  // Read and write small named texts in the database. A text that was never written is empty.
  virtual absl::StatusOr<std::string> ReadNote(const std::string& name) = 0;
  virtual absl::Status WriteNote(const std::string& name, const std::string& text) = 0;
  // Frees the space of erased objects. Always deletes files without a live object; rewrites other
  // files only while slices take more than `max_bytes`. Slow: call it in the background.
  // kCancelled: StopReclaiming() was called.
  virtual absl::Status ReclaimSpace(uint64_t max_bytes) = 0;
  // Makes a running ReclaimSpace end soon, and later calls return immediately.
  virtual void StopReclaiming() = 0;
  // Backs up the current state to a backup folder (backup.h), while the tier is in use.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;
  // Drops the object's slices from the page cache, so that the next read reads the disk.
  virtual void DropCached(uint64_t object) = 0;
  // Returns the total size of all database files now.
  virtual uint64_t FileBytes() = 0;
  // Measures the data folder's files and their volume. nullopt: measuring is impossible.
  virtual std::optional<DiskRoom> Room() = 0;
  virtual uint64_t FreeBytes() = 0;  // returns the free bytes of the volume; UINT64_MAX: unknown
  // Deletes the reserve file, so that erases can be written to a full disk. The tier creates the
  // file again when there is free space.
  virtual void ReleaseReserve() = 0;
  // Returns how often a damaged log was dropped while the tier was in use. Each time, acknowledged
  // data may have been lost from disk.
  virtual uint64_t losses() const = 0;
  // Returns whether the database is open. While it is not, read errors say nothing about the
  // slices.
  virtual bool IsOpen() const = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_H_
