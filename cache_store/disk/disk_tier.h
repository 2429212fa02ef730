// Slices and manifests in RocksDB: the only durable tier, and the only users of RocksDB.
//
// Column families: `tables` (object number, layer -> bytes; files that are written whole, see
// disk_tier_tables.h) and `slices` (the same for what is too small for that; through the log,
// values in blob files), `objects` (number -> what the slices are), `manifests` (number -> restore
// point), `fingerprints`, `meta`. Numbers only grow, so what is written together lies together, and
// what is evicted together frees whole files. An object's record is written before its slices and
// its slices before any manifest that names it: a table is in place before WriteAll returns and the
// log keeps its order, so a manifest that survived proves its objects did. Thread safety: all
// methods from any thread. RocksDB's statuses become absl's here.
#ifndef HEARTH_CACHE_STORE_DISK_DISK_TIER_H_
#define HEARTH_CACHE_STORE_DISK_DISK_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/tier.h"
#include "cache_store/base/warnings.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/promises/promises.h"
#include "cache_store/disk/stored_records.h"

namespace rocksdb {
class Env;
}

namespace hearth {

// The manifests that one erase took out, noted in its own batch.
struct GoneManifests {
  std::string key;
  std::vector<uint64_t> manifests;
};

// The contents of a folder, read once at start: records only, no slice bytes, and of manifests only
// which objects they name.
struct DiskContents {
  std::vector<ObjectRecord> objects;     // ascending by number
  std::vector<ManifestNames> manifests;  // ascending by number
  std::vector<FingerprintRecord> fingerprints;
  std::vector<uint64_t> pinned;                     // manifest numbers
  std::vector<std::pair<uint64_t, uint64_t>> uses;  // manifest number, unix seconds of its last use
  std::vector<uint64_t> unreadable_objects;
  // At least every number that anything on disk goes by, though nothing readable may name it: a
  // table that outlived the record of its object, say.
  uint64_t last_number = 0;
  std::vector<GoneManifests> gone;
  // Acknowledged, and not there any more. Said in `damage`, and from then on no longer promised.
  std::vector<Promise> lost;
  // Manifests that are there and were not promised: never acknowledged, or of an older version.
  absl::flat_hash_set<uint64_t> unpromised;
  // Manifests that were erased, are there again, and could not be erased anew. In no list above.
  std::vector<uint64_t> returned;
  // Damage beside the above, a line for each: files, and ranges of records.
  std::vector<std::string> damage;
  std::vector<std::string> mended;  // lines of it by which nothing is lost
};

struct DiskTierOptions {
  // At most 0.3 GB are then to be written to files.
  static constexpr absl::Duration kPatience = absl::Minutes(1);
  // Writes smaller than this go through the log: 64 GiB of tables of
  // this size are 65,536 files, more than enough.
  static constexpr uint64_t kMinTableBytes = uint64_t{1} << 20;

  rocksdb::Env* env = nullptr;  // what a test puts in front of the file system; outlives the tier
  absl::Duration patience = kPatience;        // with RocksDB going on after a change that failed
  uint64_t min_table_bytes = kMinTableBytes;  // a test has tables of little; not 0
  uint64_t background_bytes_per_s = uint64_t{128} << 20;  // as StoreOptions'
  std::optional<BootId> boot;          // what a test says of the machine; none: asked
  std::shared_ptr<Warnings> warnings;  // of what the database finds wrong; null: nothing is said
};

class DiskTier : public SliceTier {
 public:
  // Raised when an older program could not read what this one writes. 2: tables. 3: compressed
  // slices. 4: manifests that expire. 5: promises (promises.h), which an older program would not
  // keep in step. 6: manifests of what nobody published as a whole. Older folders are raised to it
  // when they are opened.
  static constexpr uint64_t kFormatVersion = 6;

  // kFailedPrecondition: held by another process, newer version, or other secret. `secret_check`
  // is stored on creation and compared ever after.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const std::string& dir,
                                                        const std::string& secret_check,
                                                        const DiskTierOptions& options = {});
  // Reads records; kDataLoss only when the folder cannot be read at all. Once, and first: compares
  // with what was promised, and until then no file of the database is deleted.
  virtual absl::StatusOr<DiskContents> Load() = 0;
  // Of each of these what is on disk now; none: it is not there, or not what was written. An error
  // says nothing about them: read again.
  virtual absl::StatusOr<std::vector<std::optional<ManifestRecord>>> ReadManifests(
      absl::Span<const uint64_t> numbers) = 0;
  // Those that name one of these objects. Goes through all manifests, and asks `stopped`, if set,
  // every thousand. kCancelled.
  virtual absl::StatusOr<std::vector<uint64_t>> ManifestsNaming(
      const absl::flat_hash_set<uint64_t>& objects, const std::function<bool()>& stopped) = 0;

  // Announces an object whose slices follow. Not visible to anything until a manifest names it.
  virtual absl::Status WriteObject(const ObjectRecord& object) = 0;
  // One atomic batch. With `sync`, everything written before is on stable storage too. `points`:
  // the ids of the restore points that the manifests are of, which are then promised to be there;
  // none where these were before. After an error some of it may be on disk.
  virtual absl::Status CommitManifests(const std::vector<ManifestRecord>& manifests,
                                       absl::Span<const Digest> points,
                                       const FingerprintRecord& fingerprint, bool sync) = 0;
  // Some at a time: an error may leave some erased.
  virtual absl::Status EraseManifests(absl::Span<const uint64_t> manifests) = 0;
  // They were found to be lost and said to be: the next start does not say so again.
  virtual void Unpromise(absl::Span<const uint64_t> manifests) = 0;
  virtual absl::Status SetPinned(uint64_t manifest, bool pinned) = 0;
  // When manifests were last used, as one small batch that may be lost. A database that has to be
  // told to go on first is not, for this.
  virtual absl::Status NoteUses(absl::Span<const std::pair<uint64_t, absl::Time>> uses) = 0;
  virtual absl::Status Sync() = 0;
  // One record as it is on disk now. kNotFound; kDataLoss: not what was written.
  virtual absl::StatusOr<ObjectRecord> ReadObject(uint64_t number) = 0;
  virtual absl::StatusOr<ManifestRecord> ReadManifest(uint64_t number) = 0;
  // Small texts by name that outlive the process; empty when never written.
  virtual absl::StatusOr<std::string> ReadNote(const std::string& name) = 0;
  virtual absl::Status WriteNote(const std::string& name, const std::string& text) = 0;
  // Gives the space of erased objects back to the file system: files that hold nothing else always,
  // others are rewritten only while values take more than `max_bytes`. Slow; called in the
  // background. kCancelled: stopped.
  virtual absl::Status ReclaimSpace(uint64_t max_bytes) = 0;
  // Ends a running ReclaimSpace soon and every later one at once. For good.
  virtual void StopReclaiming() = 0;
  // Copies the state of this moment to a backup folder (backup.h), beside everything else.
  virtual absl::StatusOr<BackupReport> BackUp(const std::string& to) = 0;
  // Bytes of all files of the folder's database now.
  virtual uint64_t FileBytes() = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DISK_TIER_H_
