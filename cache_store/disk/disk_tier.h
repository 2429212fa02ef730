// DiskTier: slices and manifests in RocksDB. The only durable tier, and the only user of RocksDB.
//
// Column families: `tables` (object number, layer -> bytes; files that are written whole, see
// disk_tier_tables.h) and `slices` (the same for small writes, through the log), `objects` (number
// -> the record of its slices, and which of the two they are in), `manifests` (number -> restore
// point), `fingerprints`, `meta`. Numbers only grow, so slices written together lie together, and
// evicting them frees whole files. An object's record is written before its slices and its slices
// before any manifest that names it: a table is in place before WriteAll returns and the log keeps
// its order, so a manifest that survived proves its objects did. Thread safety: all methods from
// any thread. After a change that failed the next one closes the database and opens it again, as a
// start does: RocksDB 7.8, told to go on, may wait for ever. If it cannot be opened again, or at a
// start on a full disk, it is opened read-only, and reads need no write. RocksDB's statuses become
// absl's here.
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

// The contents of a folder, read once at start: records only, no slice bytes, and of manifests only
// their numbers.
struct DiskContents {
  std::vector<ObjectRecord> objects;  // ascending by number
  std::vector<uint64_t> manifests;    // ascending
  std::vector<FingerprintRecord> fingerprints;
  std::vector<uint64_t> pinned;                     // manifest numbers
  std::vector<std::pair<uint64_t, uint64_t>> uses;  // manifest number, unix seconds of its last use
  std::vector<uint64_t> unreadable_objects;
  // No number in use on disk is higher, not even one without a readable record, such as that of a
  // table that outlived its object's record.
  uint64_t last_number = 0;
  uint64_t drops = 0;  // the number of the last one
  // Restore points that were there when the count was last noted (point_count.h), and are not.
  uint64_t lost_points = 0;
  // The machine stopped, and all that is there is whole: what was not synced may be missing.
  bool may_lack = false;
  // Damage, a line for each: files, and ranges of records.
  std::vector<std::string> damage;
};

struct DiskTierOptions {
  static constexpr absl::Duration kPause = absl::Seconds(1);
  rocksdb::Env* env = nullptr;    // a test's, in front of the file system; outlives the tier
  absl::Duration pause = kPause;  // after a database in use could not be opened again
  // A test's, for the pauses of a start before it reads again; null: it sleeps.
  std::function<void(absl::Duration)> wait;
  uint64_t background_bytes_per_s = uint64_t{128} << 20;  // as StoreOptions'
  std::optional<BootId> boot;                             // a test's; none: the machine's
  uint64_t volume_bytes = 0;           // of the volume: a test's; 0: as the volume says
  std::shared_ptr<Warnings> warnings;  // about errors of the database; null: none
};

class DiskTier : public SliceTier {
 public:
  // Another version's folder is refused.
  static constexpr uint64_t kFormatVersion = 9;
  // Writes of fewer bytes are small ones: 64 GiB of tables of this size are 65,536 files.
  static constexpr uint64_t kMinTableBytes = uint64_t{1} << 20;

  // A damaged database is mended, or set aside whole (disk_tier_recovery.h). kFailedPrecondition:
  // held by another process, another version, or other secret. `secret_check` is stored on creation
  // and compared on every later open.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const std::string& dir,
                                                        const std::string& secret_check,
                                                        const DiskTierOptions& options = {});
  // The records, as they were read when it was opened. The first call, once.
  virtual DiskContents Load() = 0;
  // Each of these as it is on disk now; none where it is absent or damaged. An error says nothing
  // about them: read again. Fastest for ascending numbers.
  virtual absl::StatusOr<std::vector<std::optional<ManifestRecord>>> ReadManifests(
      absl::Span<const uint64_t> numbers) = 0;

  // To be asked before the first write of a publish. kResourceExhausted: GiveUpReserve was called,
  // and no room was given back since: the rest of the room is for erases.
  virtual absl::Status MayAdd() = 0;
  // Announces an object whose slices follow. Not visible until a manifest names it.
  virtual absl::Status WriteObject(const ObjectRecord& object) = 0;
  // One atomic batch. With `sync`, everything written before is on stable storage too. After an
  // error some of it may be on disk.
  virtual absl::Status CommitManifests(const std::vector<ManifestRecord>& manifests,
                                       const FingerprintRecord& fingerprint, bool sync) = 0;
  // Not atomic: an error may leave some erased.
  virtual absl::Status EraseManifests(absl::Span<const uint64_t> manifests) = 0;
  // What was erased before the call stays erased, whatever is damaged later.
  virtual absl::Status SettleErases() = 0;
  virtual absl::Status SetPinned(uint64_t manifest, bool pinned) = 0;
  // Notes when manifests were last used, as one small batch that may be lost. Does not try to
  // open a database again that stopped after an error.
  virtual absl::Status NoteUses(absl::Span<const std::pair<uint64_t, absl::Time>> uses) = 0;
  virtual absl::Status Sync() = 0;
  // One record as it is on disk now. kNotFound; kDataLoss: damaged.
  virtual absl::StatusOr<ObjectRecord> ReadObject(uint64_t number) = 0;
  virtual absl::StatusOr<ManifestRecord> ReadManifest(uint64_t number) = 0;
  // Small texts by name that outlive the process; empty when never written.
  virtual absl::StatusOr<std::string> ReadNote(const std::string& name) = 0;
  virtual absl::Status WriteNote(const std::string& name, const std::string& text) = 0;
  // Frees the space of erased objects: files without any live object always; others are rewritten
  // only while values take more than `max_bytes`. Slow; called in the background. kCancelled:
  // stopped.
  virtual absl::Status ReclaimSpace(uint64_t max_bytes) = 0;
  // Ends a running ReclaimSpace soon, and every later one at once.
  virtual void StopReclaiming() = 0;
  // Copies the state of this moment to a backup folder (backup.h), while the tier is in use.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;
  // The next read of this object's slices is the device's, not the page cache's.
  virtual void DropCached(uint64_t object) = 0;
  // Bytes of all files of the folder's database now.
  virtual uint64_t FileBytes() = 0;
  // Reads the size of each file of the data folder. None: it could not be measured.
  virtual std::optional<DiskRoom> Room() = 0;
  virtual uint64_t FreeBytes() = 0;  // of the volume; the largest number: unknown
  // Deletes the file that keeps room for a start, so that erases can be written on a full disk. It
  // is made again when there is room.
  virtual void GiveUpReserve() = 0;
  // How often a damaged log was given up in use: part of what was acknowledged may not be on disk.
  virtual uint64_t losses() const = 0;
  // False while it failed and cannot even be read: what reads say then is of no slice.
  virtual bool IsOpen() const = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_H_
