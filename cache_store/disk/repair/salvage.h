// SalvagedFolder: the records and slices that the files of a damaged data folder still prove,
// without RocksDB and its manifest.
//
// Every table (those moved to lost/ too), log and blob file is read, whatever its name. A record is
// proved by its digest, a slice by the digest in its object's record, a restore point by its
// objects; anything else is ignored. Nothing is written. Numbers are never used twice: a number
// that was erased stays erased, wherever an older version lies, and so does one that left according
// to the promises. A point in lost/ alone is kept if the promises name it, as promised or as found
// lost: one that they do not name had left when they were rewritten, unless entries had rotted
// before; then it is kept if it is proved. Of restore points with one id the newest is kept. Thread
// safety: none. Memory: all records, no slices.
#ifndef HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_H_
#define HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "cache_store/disk/promises/promises.h"
#include "cache_store/disk/repair/salvage_file.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {

struct SalvageFile {
  enum class Kind { kTable, kLog, kBlobs };

  std::string path;
  Kind kind = Kind::kTable;
  bool was_lost = false;  // in lost/
  uint64_t bytes = 0;
  TableEnd end;  // of a table
  SalvageDamage damage;
  uint64_t slices = 0;   // that are taken from it
  bool has_rot = false;  // slices that do not match their records

  // Nothing in it is wrong, so a new database can link it as it is.
  bool CanBeLinked() const;
};

struct SalvagedObject {
  // The file of a slice; in it the slice is found by its key.
  struct Place {
    int file = -1;  // none yet
    uint64_t bytes = 0;
  };

  ObjectRecord record;
  int trust = -1;             // in the record's source: the higher, the more
  bool is_wanted = false;     // by a restore point that its records prove
  bool is_kept = false;       // by one that its slices prove too
  std::vector<Place> places;  // as its layers
};

struct SalvagedPoint {
  ManifestRecord record;
  int trust = -1;
  uint64_t sequence = 0;
  std::string problem;  // why it is lost; empty: it is not
  bool is_expired = false;
  bool is_in_database = false;  // not in lost/ alone
  bool has_left = false;        // as the promises say, or for a newer one
  bool is_unnamed = false;      // in lost/ alone, and the promises may have lost its entry

  bool IsKept() const { return problem.empty() && !is_expired && !has_left; }
};

class SalvagedFolder {
 public:
  // Told about each next step; for people.
  using Progress = std::function<void(const std::string&)>;

  SalvagedFolder(const std::string& dir, Progress progress);

  // The first calls, in this order. `now_unix_s`: points that expired before are not kept, unless
  // pinned.
  void ReadRecords();
  void FindSlices(uint64_t now_unix_s);

  const std::vector<SalvageFile>& files() const { return files_; }
  const std::map<uint64_t, SalvagedPoint>& points() const { return points_; }
  const absl::flat_hash_map<uint64_t, SalvagedObject>& objects() const { return objects_; }
  // For a kept point.
  const Fingerprint& FingerprintOf(const SalvagedPoint& point) const {
    return fingerprints_.at(point.record.manifest.fingerprint);
  }
  // Numbers of restore points with unreadable records.
  const absl::flat_hash_set<uint64_t>& unreadable() const { return unreadable_; }
  // Acknowledged points that no file has any more.
  const std::vector<Promise>& vanished() const { return vanished_; }
  // Still promised, but a file has their erase.
  const std::vector<uint64_t>& erased_promises() const { return erased_promises_; }
  // The family `meta`: the newest value of each key, keys of numbers included.
  const std::map<std::string, std::string>& meta() const { return meta_; }
  // No number in use is higher.
  uint64_t last_number() const { return last_number_; }
  // The restore point's id, from its last object; empty when that is lost too.
  std::string IdOf(const SalvagedPoint& point) const;

  // Whether these are the stored bytes of the object's slice.
  static bool IsSlice(const ObjectRecord& object, size_t slice, absl::string_view stored);
  // The slice of the object that the key names; none for another object, or no slice.
  static std::optional<size_t> SliceOf(const ObjectRecord& object, absl::string_view key);
  // `visit` gets every entry of a file.
  static SalvageDamage Visit(const SalvageFile& file, const VisitSalvaged& visit);

 private:
  struct MetaVersion {
    int trust = -1;
    uint64_t sequence = 0;
    bool is_erased = false;
    std::string value;
  };

  void CompareWithPromises(uint64_t number, SalvagedPoint* point) const;
  void ListFiles(const std::string& folder, bool was_lost);
  // `trust`: lower for a table in lost/, which may be older than an erase of its contents.
  void TakeRecord(const SalvagedEntry& entry, int trust);
  void TakeNumbered(const SalvagedEntry& entry, uint64_t number, int trust);
  void TakeMetaEntry(const SalvagedEntry& entry, int trust);
  void TakeSlice(const SalvagedEntry& entry, int file);
  // Why the point cannot be kept, by its records alone.
  std::string ProblemOf(const SalvagedPoint& point) const;
  // Why its slices do not prove it; empty if they do. Objects that newer points keep replace its
  // own.
  using KeptObjects = absl::flat_hash_map<std::pair<Digest, LayerGroup>, uint64_t>;
  std::string TakeObjectsOf(const KeptObjects& kept, SalvagedPoint* point);
  void KeepPoints();

  const Progress progress_;
  std::vector<SalvageFile> files_;
  std::map<uint64_t, SalvagedPoint> points_;
  absl::flat_hash_map<uint64_t, SalvagedObject> objects_;
  absl::flat_hash_map<Digest, Fingerprint> fingerprints_;
  absl::flat_hash_set<uint64_t> erased_, unreadable_;
  PromiseBook promises_;
  std::vector<Promise> vanished_;
  std::vector<uint64_t> erased_promises_;
  std::map<std::string, MetaVersion> meta_versions_;
  std::map<std::string, std::string> meta_;
  uint64_t last_number_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REPAIR_SALVAGE_H_
