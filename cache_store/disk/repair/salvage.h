// SalvagedFolder: what the files of a damaged data folder still prove, without RocksDB and without
// a word of its manifest.
//
// Every table (those moved to lost/ too), log and blob file is read, whatever it is called and
// whoever names it. A record proves itself by its digest, a slice by the digest in its object's
// record, a restore point by its objects; what does not is not believed. Nothing is written.
// Numbers are given once: what was erased once stays erased, wherever an older version lies, and so
// does what the promises say has left. What lies in lost/ alone is taken if they name it, as
// promised or as found lost: what they do not name any more had left when they were written anew,
// unless entries had rotted before: then it is taken if it proves itself.
// Of restore points with one id the newest is kept. Thread safety: none. Memory: all records, no
// slices.
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
  bool has_rot = false;  // slices that are not what their records say

  // Nothing in it is wrong, so a new database can have it as it is.
  bool CanBeLinked() const;
};

struct SalvagedObject {
  // Where a slice is; there it is found by its key.
  struct Place {
    int file = -1;  // none yet
    uint64_t bytes = 0;
  };

  ObjectRecord record;
  int trust = -1;             // in where the record comes from: the higher, the more
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
  bool is_unnamed = false;      // in lost/ alone, and the promises may have been silent of it

  bool IsKept() const { return problem.empty() && !is_expired && !has_left; }
};

class SalvagedFolder {
 public:
  // Told what is done next; for people.
  using Progress = std::function<void(const std::string&)>;

  SalvagedFolder(const std::string& dir, Progress progress);

  // First, in this order. `now_unix_s`: what expires before it is not kept, unless it is pinned.
  void ReadRecords();
  void FindSlices(uint64_t now_unix_s);

  const std::vector<SalvageFile>& files() const { return files_; }
  const std::map<uint64_t, SalvagedPoint>& points() const { return points_; }
  const absl::flat_hash_map<uint64_t, SalvagedObject>& objects() const { return objects_; }
  // Of a kept point.
  const Fingerprint& FingerprintOf(const SalvagedPoint& point) const {
    return fingerprints_.at(point.record.manifest.fingerprint);
  }
  // Numbers of restore points whose records are there and cannot be read.
  const absl::flat_hash_set<uint64_t>& unreadable() const { return unreadable_; }
  // Acknowledged points that are in no file any more.
  const std::vector<Promise>& vanished() const { return vanished_; }
  // Promised still, and erased, as an erase that is left says.
  const std::vector<uint64_t>& erased_promises() const { return erased_promises_; }
  // The family `meta`: the newest value of each key, of numbers too.
  const std::map<std::string, std::string>& meta() const { return meta_; }
  // At least every number that anything goes by.
  uint64_t last_number() const { return last_number_; }
  // The restore point's, by its last object; empty: that is lost too.
  std::string IdOf(const SalvagedPoint& point) const;

  // Whether these are the bytes of one of the object's slices, as they are stored.
  static bool IsSlice(const ObjectRecord& object, size_t slice, absl::string_view stored);
  // Which slice of an object a key is of; none: of another object, or of no slice.
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
  // `trust`: a table in lost/ may be older than the erase of what is in it.
  void TakeRecord(const SalvagedEntry& entry, int trust);
  void TakeNumbered(const SalvagedEntry& entry, uint64_t number, int trust);
  void TakeMetaEntry(const SalvagedEntry& entry, int trust);
  void TakeSlice(const SalvagedEntry& entry, int file);
  // Why the point cannot be kept, by its records alone.
  std::string ProblemOf(const SalvagedPoint& point) const;
  // Why its slices do not prove it. What newer points keep takes the place of its own objects.
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
