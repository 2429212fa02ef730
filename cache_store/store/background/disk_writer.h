// DiskWriter: writes objects and manifests to disk: for publishes, and in the background for
// restore points that are only in RAM or whose manifest is outdated or damaged.
//
// Thread safe. Errors: what a failed write left on disk is erased, or recorded to be erased later.
// If the background queue is full, this is counted, and the restore point stays only in RAM.
// Ownership: borrows the core; jobs run in its executor. REQUIRES: a disk tier.
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

// Returns a restore point's expiry as its manifest stores it; 0: never.
inline uint64_t ExpiresUnixSeconds(absl::Time expires) {
  if (expires == absl::InfiniteFuture()) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(1, absl::ToUnixSeconds(expires)));
}

inline absl::Time EndOf(const ManifestRecord& record) {
  if (record.expires_unix_s == 0) return absl::InfiniteFuture();
  return absl::FromUnixSeconds(static_cast<int64_t>(record.expires_unix_s));
}

// Objects and manifests of one write to disk, and its progress. Its creator holds a reference on
// each object and has claimed their keys.
struct Persisting {
  struct Object {
    StoredObject* object = nullptr;
    Digest key{};
    HostCopy slices;
    bool is_verified = false;
  };
  std::vector<Digest> claims;
  std::vector<Object> objects;  // objects to write
  std::vector<ManifestRecord> manifests;
  std::vector<Digest> points;  // ids of the restore points of the manifests
  // numbers of the manifests of pinned points; pins do not change while the ids are claimed
  std::vector<uint64_t> pins;
  // Progress: this many objects and manifests may be on disk, at least in part, even after an
  // error.
  size_t begun_objects = 0;
  bool begun_manifests = false;
  FingerprintRecord fingerprint;
  uint64_t reserved_bytes = 0;
};

class DiskWriter {
 public:
  explicit DiskWriter(StoreCore* core) : core_(core) {}

  // Returns the manifest record of a restore point. REQUIRES: the caller holds the lock.
  static ManifestRecord RecordOf(const RestorePointEntry& point);
  // Returns the manifest record of a restore point that does not exist yet; the caller fills in
  // times, fingerprint and cuts.
  static ManifestRecord NewRecord(uint64_t number, const std::string& tenant,
                                  std::vector<uint32_t> token_ids,
                                  absl::Span<StoredObject* const> objects);
  // Writes `work`, calls `end` with the status under the lock, and ends the key claims. After an
  // error, the claims end only after what the write left on disk is erased. Takes the lock only
  // once, unless the write fails.
  absl::Status Persist(Persisting* work, bool sync,
                       absl::FunctionRef<void(const absl::Status&)> end)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  // Call after a failed write: records what it may have left on disk, to be erased. Returns the
  // objects whose write had begun: they may be in RAM and be written again, so erase them only
  // while their keys are claimed.
  std::vector<uint64_t> AbandonWrite(const Persisting& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Writes the restore points in the background. If a point is on disk, writes only a new manifest.
  // `bytes`: total size of the objects that are only in RAM until then.
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
