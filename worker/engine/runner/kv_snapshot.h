// Copies between a sequence's keys and values and stored objects.
//
// Thread safety: pure functions on their arguments; a KvCache is used by one thread at a time.
// Ownership: objects are filled before they are shared; a sealed object never changes again.
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

// Whether `objects` are exactly what `boundary` needs, in any order, whole and aligned. kDataLoss
// says which object is wrong. On OK they are in NeededObjects order.
absl::Status CheckAndSortObjects(const KvLayout& layout, uint32_t boundary, KvObjects* objects);

// Makes `kv` the state after `boundary` tokens, exactly as if they had just been computed: local
// layers hold the last W-1 rows and no more.
// REQUIRES: CheckAndSortObjects passed; boundary <= kv->capacity().
void RestoreSnapshot(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                     KvCache* kv);

// The address of the slice of a group's layer number `index`: on the worker's device, or in the
// object's own memory.
const std::byte* SliceOf(const KvObject& object, size_t index, size_t slice_bytes);

// Whether every object is whole and in the host's memory.
bool MayBeKept(const KvObjects& objects);

// An object with its memory, not its content.
std::shared_ptr<KvObject> NewObject(const KvLayout& layout, const ObjectId& id);

// Copies the rows of [begin, end) that lie in the object from the cache.
// REQUIRES: the cache holds them in all layers of the object's group.
void CopyRows(const KvLayout& layout, const SequenceKv& kv, uint32_t begin, uint32_t end,
              KvObject* object);

// Copies the rows that both have: a remainder's into a longer segment, or the first ones of that.
// REQUIRES: same begin and group; neither is quantized.
void CopyRows(const KvLayout& layout, const KvObject& from, KvObject* to);

// Computes the slices' digests. REQUIRES: all rows are filled.
void SealObject(const KvLayout& layout, KvObject* object);

// Keys and values as the bytes of a snapshot file, and back.
//
// The format is proto/snapshot_format.h's. Thread safety: pure functions on their arguments.
// Ownership: both directions copy.

// The file of the restore point at the end of `token_ids`.
// REQUIRES: `objects` are whole and sealed, in NeededObjects order.
absl::StatusOr<std::string> MakeSnapshotFile(const Fingerprint& fingerprint, const KvLayout& layout,
                                             std::vector<uint32_t> token_ids,
                                             const KvObjects& objects);

// The objects of a whole file, in its order. REQUIRES: VerifySnapshotFile(file) is OK and `header`
// is its header.
KvObjects ObjectsOfSnapshot(const SnapshotHeader& header, absl::string_view file);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_KV_SNAPSHOT_H_
