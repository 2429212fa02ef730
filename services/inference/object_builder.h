// ObjectBuilder: fills the objects of a fetch slice by slice, and verifies each slice when it is
// complete.
//
// It checks that the objects are exactly those that the boundary needs, that each byte arrives
// once, and that each slice has the digest that the plan announced. Thread safety: none, but
// different threads may write to the memory of reserved slices at any time until Take. Ownership:
// owns the buffers until Take.
#ifndef HEARTH_SERVICES_INFERENCE_OBJECT_BUILDER_H_
#define HEARTH_SERVICES_INFERENCE_OBJECT_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/kv_layout.h"
#include "proto/slice_hasher.h"
#include "services/rpc/slice_wire.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class ObjectBuilder {
 public:
  // One object that a plan announces.
  struct Announced {
    ObjectId id;
    std::vector<uint64_t> slice_digests;
    // The object's bytes on this process's device; null: not there. If set, the stream has no
    // slices of the object. The exception is a remainder: the host needs its bytes too.
    std::shared_ptr<const std::byte> device_bytes = nullptr;
    std::function<absl::Status()> check_device_bytes = nullptr;
  };
  // kFailedPrecondition if, under `layout`, `boundary` needs objects other than `announced`.
  static absl::StatusOr<ObjectBuilder> Create(const KvLayout& layout, uint32_t boundary,
                                              std::vector<Announced> announced);

  // A slice that arrives whole.
  struct Reserved {
    std::byte* to;  // only the caller writes there; valid until Take
    size_t bytes;
    uint64_t digest;  // announced by the plan
    uint32_t object;  // index in the plan
    size_t slice;     // index in the object
  };
  // Reserves a slice, which the caller fills on any thread. kFailedPrecondition if there is no such
  // slice, or some of its bytes arrived or are reserved.
  absl::StatusOr<Reserved> Reserve(uint32_t object, uint32_t layer);
  // Call when a reserved slice was filled. `digest`: of the bytes there. kDataLoss if it is not the
  // announced digest. REQUIRES: Reserve returned `filled`, and it was not put before.
  absl::Status PutReserved(const Reserved& filled, uint64_t digest);
  // Returns the address for the next piece, which has `bytes` bytes. The pieces of one slice must
  // come in ascending order. kFailedPrecondition if the piece does not fit.
  absl::StatusOr<std::byte*> Place(const SliceHeader& piece, size_t bytes);
  // The caller may add a piece's bytes to this hasher while it copies them. Otherwise PutPiece
  // reads the slice again.
  SliceHasher* hasher() { return &hasher_; }
  // Call when the piece was copied to its place. kDataLoss if the complete slice does not have its
  // announced digest, or if Place was not called.
  absl::Status PutPiece();
  // Calls Place and PutPiece, and copies `data`.
  absl::Status Add(uint32_t object, uint32_t layer, uint64_t offset, absl::string_view data);
  // Returns the objects. kDataLoss if any slice is incomplete.
  absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> Take();

  uint64_t bytes_added() const { return bytes_added_; }
  uint64_t bytes_on_device() const { return bytes_on_device_; }
  bool complete() const { return bytes_added_ == whole_bytes_; }

 private:
  struct Slot {
    std::shared_ptr<KvObject> object;
    std::vector<uint64_t> filled_bytes;  // bytes of each slice that arrived or are reserved
    std::vector<bool> is_reserved;       // per slice: reserved, and not put yet
  };
  // The place of a piece that fits.
  struct Position {
    Slot* slot;
    size_t slice;      // index in the slot's object
    std::byte* begin;  // of the slice
  };
  explicit ObjectBuilder(const KvLayout& layout);
  absl::StatusOr<size_t> SliceBytes(uint32_t object) const;
  // Returns the place of a piece. kFailedPrecondition if the piece does not fit.
  absl::StatusOr<Position> PositionOf(const SliceHeader& piece, size_t bytes);
  uint64_t DigestOf(const std::byte* slice, size_t bytes) const;
  static absl::Status CheckDigest(const Slot& slot, size_t slice, uint64_t digest);

  KvLayout layout_;
  std::vector<uint32_t> layers_[2];  // numbers of the layers in each layer group
  std::vector<Slot> slots_;
  uint64_t bytes_added_ = 0, bytes_on_device_ = 0, whole_bytes_ = 0;
  // Slot of the piece for which Place was called, until PutPiece.
  Slot* placed_ = nullptr;
  size_t placed_slice_ = 0;
  size_t placed_bytes_ = 0;
  SliceHasher hasher_;
  // The slice whose bytes were all given to hasher_, from its first byte on.
  const std::byte* hashed_slice_ = nullptr;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_OBJECT_BUILDER_H_
