// Copies between a sequence's keys and values and stored objects.
//
// Thread safety: pure functions on their arguments; a KvCache is used by one thread at a time.
// Ownership: an object is filled before it is shared. A sealed object never changes.
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

// If `objects` are exactly the objects that `boundary` needs, complete and aligned, sorts them into
// NeededObjects order. Otherwise returns kDataLoss, which names the wrong object.
absl::Status CheckAndSortObjects(const KvLayout& layout, uint32_t boundary, KvObjects* objects);

// Sets `kv` to the state after `boundary` tokens, as if these had just been computed: local layers
// (sliding window W) hold only the last W-1 rows.
// REQUIRES: CheckAndSortObjects passed; boundary <= kv->capacity().
void RestoreSnapshot(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                     KvCache* kv);

// Returns the slice of layer number `index` of the object's group. The slice is in device memory if
// the object has device_bytes, else in host memory.
const std::byte* SliceOf(const KvObject& object, size_t index, size_t slice_bytes);

// Returns whether all objects have their bytes in host memory, and none refers to device memory
// (device_bytes).
bool MayBeKept(const KvObjects& objects);

// Waits until the bytes and digests of a late object are there. kInternal: the device failed.
absl::Status AwaitBytes(const KvObject& object);

// For objects with device_bytes, which a cache lends. CheckLent: call after their bytes were copied
// and the copies have ended; kAborted if the lender may have overwritten bytes before. ReturnLent
// drops device_bytes: objects without bytes in host memory remain as ids and digests.
absl::Status CheckLent(const KvObjects& objects);
void ReturnLent(KvObjects* objects);

// Returns an object with allocated but unfilled memory.
std::shared_ptr<KvObject> NewObject(const KvLayout& layout, const ObjectId& id);

// Copies rows [begin, end) of `kv` into the object, as far as they belong to it.
// REQUIRES: `kv` holds these rows in all layers of the object's group.
void CopyRows(const KvLayout& layout, const SequenceKv& kv, uint32_t begin, uint32_t end,
              KvObject* object);

// Copies the rows that the two objects have in common: one may be a longer object with the same
// beginning. REQUIRES: equal begin and group; neither object is quantized.
void CopyRows(const KvLayout& layout, const KvObject& from, KvObject* to);

// Computes the digests of the object's slices. REQUIRES: all rows are filled.
void SealObject(const KvLayout& layout, KvObject* object);

// Conversion between KV objects and snapshot files (proto/snapshot_format.h).
//
// Thread safety: pure functions on their arguments. Ownership: conversion in either direction
// copies.

// Returns a snapshot file of the KV of all `token_ids`.
// REQUIRES: `objects` are complete and sealed, in NeededObjects order.
absl::StatusOr<std::string> MakeSnapshotFile(const Fingerprint& fingerprint, const KvLayout& layout,
                                             std::vector<uint32_t> token_ids,
                                             const KvObjects& objects);

// Returns the objects of a snapshot file, in the file's order. REQUIRES: VerifySnapshotFile(file)
// is OK; `header` is the file's header.
KvObjects ObjectsOfSnapshot(const SnapshotHeader& header, absl::string_view file);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_KV_SNAPSHOT_H_
