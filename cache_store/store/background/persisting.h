// Persisting: a write to the disk under way, and how far it came. Plain values; whoever makes one
// holds what it refers to.
#ifndef HEARTH_CACHE_STORE_STORE_BACKGROUND_PERSISTING_H_
#define HEARTH_CACHE_STORE_STORE_BACKGROUND_PERSISTING_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/disk/stored_records.h"

namespace hearth {

inline ObjectRecord ObjectRecordOf(const StoredObject& object, uint64_t compressed_bytes) {
  return {object.number, object.key,           object.id,       object.slice_bytes,
          object.layers, object.slice_digests, compressed_bytes};
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

// Objects and manifests on their way to the disk. Holds one reference on each object.
struct Persisting {
  std::vector<const StoredObject*> objects;   // to be written
  std::vector<std::vector<SliceView>> views;  // of each, in order of its layers
  std::vector<uint64_t> compressed_bytes;     // of each, once written; 0: as they are
  std::vector<ManifestRecord> manifests;
  std::vector<Digest> points;  // the ids of those that the manifests are of
  // How far it came: of these something may be on disk, whatever the write's status.
  size_t begun_objects = 0;
  bool begun_manifests = false;
  FingerprintRecord fingerprint;
  uint64_t reserved_bytes = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_BACKGROUND_PERSISTING_H_
