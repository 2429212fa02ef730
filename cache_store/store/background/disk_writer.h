// DiskWriter: puts objects and manifests on the disk: for a publish, and in the background for
// restore points that are only in RAM, or whose manifest says an earlier end or is rotten.
//
// Thread safe. Errors: what a failed write may have left on disk is erased, or noted to be. When
// the background's queue is full, that is counted and the restore point stays in RAM only.
// Ownership: borrows the core, in whose executor its jobs run. REQUIRES: a disk tier.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_DISK_WRITER_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_DISK_WRITER_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/disk/stored_records.h"
#include "cache_store/store/store_core.h"

namespace hearth {

inline ObjectRecord ObjectRecordOf(const StoredObject& object, const Digest& key) {
  const absl::Span<const uint64_t> digests = object.slice_digests();
  return {object.number,
          key,
          object.id,
          object.slice_bytes,
          object.layers(),
          {digests.begin(), digests.end()},
          object.in_table.load()};
}

// A restore point's end, as its manifest has it.
inline uint64_t ExpiresUnixSeconds(absl::Time expires) {
  if (expires == absl::InfiniteFuture()) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(1, absl::ToUnixSeconds(expires)));
}

inline absl::Time EndOf(const ManifestRecord& record) {
  if (record.expires_unix_s == 0) return absl::InfiniteFuture();
  return absl::FromUnixSeconds(static_cast<int64_t>(record.expires_unix_s));
}

// Objects and manifests on their way to the disk, and how far they came. Its maker holds a
// reference on each object, and has claimed their keys.
struct Persisting {
  struct Object {
    StoredObject* object = nullptr;
    Digest key{};
    HostCopy slices;
    bool is_verified = false;
  };
  std::vector<Digest> claims;
  std::vector<Object> objects;  // to be written
  std::vector<ManifestRecord> manifests;
  std::vector<Digest> points;  // the ids of those that the manifests are of
  std::vector<uint64_t> pins;  // the manifests of pinned ones: no pin changes while ids are claimed
  // How far it came: parts of these may be on disk, whatever the write's status.
  size_t begun_objects = 0;
  bool begun_manifests = false;
  FingerprintRecord fingerprint;
  uint64_t reserved_bytes = 0;
};

class DiskWriter {
 public:
  explicit DiskWriter(StoreCore* core) : core_(core) {}

  // The manifest of a restore point. REQUIRES: the lock.
  static ManifestRecord RecordOf(const RestorePointEntry& point);
  // The same for a future restore point: the caller fills in times, fingerprint and cuts.
  static ManifestRecord NewRecord(uint64_t number, const std::string& tenant,
                                  std::vector<uint32_t> token_ids,
                                  absl::Span<StoredObject* const> objects);
  // Writes it, calls `end` under the lock with the outcome, and ends the claims, after a failed
  // write once what it left is erased. No other lock is taken unless something fails.
  absl::Status Persist(Persisting* work, bool sync,
                       absl::FunctionRef<void(const absl::Status&)> end)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // After a failed write: notes what it may have left for erasure, and returns the objects that it
  // began. These may be in RAM and be written again: they can be erased only while their keys are
  // claimed.
  std::vector<uint64_t> AbandonWrite(const Persisting& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // In the background; of points that are on disk the manifest alone, anew. `bytes`: of their
  // objects that are only in RAM until then.
  void Schedule(std::vector<Digest> points, uint64_t bytes) ABSL_LOCKS_EXCLUDED(core_->mu);

 private:
  absl::Status Write(Persisting* work, bool sync) ABSL_LOCKS_EXCLUDED(core_->mu);
  void WriteBehind(const Digest& id) ABSL_LOCKS_EXCLUDED(core_->mu);
  bool Prepare(RestorePointEntry* point, bool may_evict, Persisting* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_DISK_WRITER_H_
