// DiskTier: slices and manifests in RocksDB. The only durable tier, and the only user of RocksDB.
//
// Column families: `tables` (object number, layer -> bytes; files that are written whole, see
// disk_tier_tables.h), `slices` (the same for small writes, through the log), `objects` (number ->
// the record of its slices, with their family), `manifests` (number -> restore point),
// `fingerprints`, `meta`. Numbers only grow, so slices written together lie together, and evicting
// them frees whole files.
//
// An object's record is written before its slices, and its slices before any manifest that names
// it. WriteAll links a table before it returns, and the log keeps its order, so a manifest that
// survived proves that its objects survived. Thread safety: all methods from any thread. After a
// failed change, the next change closes the database and opens it as a start does: RocksDB 7.8 may
// wait forever if it resumes after an error. If the database cannot be opened for writing, or the
// disk is full at a start, it is opened read-only. This tier converts RocksDB's statuses to
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

// The records of a folder, read once at start, without slice bytes; for manifests only their
// numbers.
struct DiskContents {
  std::vector<ObjectRecord> objects;  // ascending by number
  std::vector<uint64_t> manifests;    // ascending
  std::vector<FingerprintRecord> fingerprints;
  std::vector<uint64_t> pinned;                     // manifest numbers
  std::vector<std::pair<uint64_t, uint64_t>> uses;  // manifest number, Unix seconds of the last use
  std::vector<uint64_t> unreadable_objects;
  // Highest number in use on disk, including slices whose object record is missing, such as a table
  // that outlived its object's record.
  uint64_t last_number = 0;
  uint64_t drops = 0;  // number of the last drop
  // Restore points that the count (point_count.h) includes but that are missing.
  uint64_t lost_points = 0;
  // The machine stopped, and the remaining data is intact: unsynced data may be missing.
  bool may_lack = false;
  // Damaged files and ranges of records, a line for each.
  std::vector<std::string> damage;
};

struct DiskTierOptions {
  static constexpr absl::Duration kPause = absl::Seconds(1);
  rocksdb::Env* env = nullptr;    // tests: wraps the file system; outlives the tier
  absl::Duration pause = kPause;  // pause after reopening the database failed
  // Tests: replaces the pauses before a start reads again; null: sleep.
  std::function<void(absl::Duration)> wait;
  uint64_t background_bytes_per_s = uint64_t{128} << 20;  // as in StoreOptions
  std::optional<BootId> boot;                             // tests: the boot id; none: the machine's
  uint64_t volume_bytes = 0;                              // tests: size of the volume; 0: measured
  std::shared_ptr<Warnings> warnings;  // reports errors of the database; null: none
};

class DiskTier : public SliceTier {
 public:
  // Folders of other versions are refused.
  static constexpr uint64_t kFormatVersion = 9;
  // Smaller writes go to `slices`: 64 GiB of tables of this size are 65,536 files.
  static constexpr uint64_t kMinTableBytes = uint64_t{1} << 20;

  // Opens a folder. Repairs a damaged database, or sets it aside (disk_tier_recovery.h).
  // kFailedPrecondition: another process holds the folder, or it has another version or secret.
  // Creation stores `secret_check`; every later open compares it.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const std::string& dir,
                                                        const std::string& secret_check,
                                                        const DiskTierOptions& options = {});
  // Returns the records read by Open(). Call once, before other methods.
  virtual DiskContents Load() = 0;
  // Reads manifests as they are on disk now; nullopt for an absent or damaged manifest. An error
  // says nothing about the manifests: read again. Fastest for ascending numbers.
  virtual absl::StatusOr<std::vector<std::optional<ManifestRecord>>> ReadManifests(
      absl::Span<const uint64_t> numbers) = 0;

  // Call before the first write of a publish. kResourceExhausted: ReleaseReserve was called and no
  // space was freed since; the remaining space is for erases.
  virtual absl::Status MayAdd() = 0;
  // Writes the record of an object whose slices follow. The object stays invisible until a manifest
  // names it.
  virtual absl::Status WriteObject(const ObjectRecord& object) = 0;
  // Writes one atomic batch. With `sync`, everything written before is on stable storage, too.
  // After an error a part may be on disk.
  virtual absl::Status CommitManifests(const std::vector<ManifestRecord>& manifests,
                                       const FingerprintRecord& fingerprint, bool sync) = 0;
  // Not atomic: after an error some manifests may be erased.
  virtual absl::Status EraseManifests(absl::Span<const uint64_t> manifests) = 0;
  // After this returns OK, everything erased before the call stays erased, whatever is damaged
  // later.
  virtual absl::Status SettleErases() = 0;
  virtual absl::Status SetPinned(uint64_t manifest, bool pinned) = 0;
  // Notes last uses of manifests as one small batch that may be lost. Does not reopen the database
  // after an error.
  virtual absl::Status NoteUses(absl::Span<const std::pair<uint64_t, absl::Time>> uses) = 0;
  virtual absl::Status Sync() = 0;
  // Reads a record as it is on disk now. kNotFound: absent; kDataLoss: damaged.
  virtual absl::StatusOr<ObjectRecord> ReadObject(uint64_t number) = 0;
  virtual absl::StatusOr<ManifestRecord> ReadManifest(uint64_t number) = 0;
  // Small named texts that outlive the process; empty if never written.
  virtual absl::StatusOr<std::string> ReadNote(const std::string& name) = 0;
  virtual absl::Status WriteNote(const std::string& name, const std::string& text) = 0;
  // Frees the space of erased objects. Always deletes files without a live object; rewrites other
  // files only while values take more than `max_bytes`. Slow: call it in the background.
  // kCancelled: stopped.
  virtual absl::Status ReclaimSpace(uint64_t max_bytes) = 0;
  // Ends a running ReclaimSpace soon; later calls return immediately.
  virtual void StopReclaiming() = 0;
  // Copies the current state to a backup folder (backup.h) while the tier is in use.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;
  // Makes the next read of the object's slices read the device instead of the page cache.
  virtual void DropCached(uint64_t object) = 0;
  // Returns the current bytes of all database files.
  virtual uint64_t FileBytes() = 0;
  // Measures the sizes of the data folder's files and the volume. nullopt: not measurable.
  virtual std::optional<DiskRoom> Room() = 0;
  virtual uint64_t FreeBytes() = 0;  // free bytes of the volume; UINT64_MAX: unknown
  // Deletes the reserve file, so that erases can be written on a full disk. The tier makes the file
  // again when there is room.
  virtual void ReleaseReserve() = 0;
  // Returns how often the tier dropped a damaged log while in use: acknowledged data may be missing
  // on disk.
  virtual uint64_t losses() const = 0;
  // Returns false while the database cannot be read at all: read errors then say nothing about
  // slices.
  virtual bool IsOpen() const = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_H_
