// Copies between a sequence's keys and values and stored objects.
//
// Thread safety: pure functions on their arguments; a KvCache is used by one thread at a time.
// Ownership: objects are filled before they are shared; a sealed object never changes.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_KV_SNAPSHOT_H_
#define HEARTH_WORKER_ENGINE_RUNNER_KV_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/snapshot_format.h"
#include "worker/model/sequence_kv.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class KvCache;

using KvObjects = std::vector<std::shared_ptr<const KvObject>>;

// Returns OK, and sorts `objects` into NeededObjects order, if they are exactly the objects that
// `boundary` needs, whole and aligned. kDataLoss names the wrong object.
absl::Status CheckAndSortObjects(const KvLayout& layout, uint32_t boundary, KvObjects* objects);

// Sets `kv` to the state after `boundary` tokens, exactly as if they had just been computed: local
// layers hold only the last W-1 rows.
// REQUIRES: CheckAndSortObjects passed; boundary <= kv->capacity().
void RestoreSnapshot(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                     KvCache* kv);

// Returns the slice of the group's layer number `index`, in device memory if the object has
// device_bytes, else in host memory.
const std::byte* SliceOf(const KvObject& object, size_t index, size_t slice_bytes);

// Returns whether every object is whole and in host memory.
bool MayBeKept(const KvObjects& objects);

// Returns an object with allocated, unfilled memory.
std::shared_ptr<KvObject> NewObject(const KvLayout& layout, const ObjectId& id);

// Copies the rows of [begin, end) that belong to the object from the cache.
// REQUIRES: the cache holds them in all layers of the object's group.
void CopyRows(const KvLayout& layout, const SequenceKv& kv, uint32_t begin, uint32_t end,
              KvObject* object);

// Copies the rows that both objects have: one of them may be a shorter remainder of the other.
// REQUIRES: same begin and group; neither is quantized.
void CopyRows(const KvLayout& layout, const KvObject& from, KvObject* to);

// Computes the digests of the slices. REQUIRES: all rows are filled.
void SealObject(const KvLayout& layout, KvObject* object);

// Conversion between keys and values and snapshot files (proto/snapshot_format.h).
//
// Thread safety: pure functions on their arguments. Ownership: both directions copy.

// Returns the snapshot file of the restore point at the end of `token_ids`.
// REQUIRES: `objects` are whole and sealed, in NeededObjects order.
absl::StatusOr<std::string> MakeSnapshotFile(const Fingerprint& fingerprint, const KvLayout& layout,
                                             std::vector<uint32_t> token_ids,
                                             const KvObjects& objects);

// Returns the objects of a file, in its order. REQUIRES: VerifySnapshotFile(file) is OK and
// `header` is its header.
KvObjects ObjectsOfSnapshot(const SnapshotHeader& header, absl::string_view file);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_KV_SNAPSHOT_H_
