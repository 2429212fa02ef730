// ObjectBuilder: fills the objects of a fetch slice by slice, and verifies each slice when it is
// complete.
//
// Takes nothing on trust: the objects are exactly those the boundary needs, every byte has one
// place, and every slice has the digest that the plan announced. Thread safety: none. Ownership:
// owns the buffers until Take.
#ifndef HEARTH_SERVICES_INFERENCE_OBJECT_BUILDER_H_
#define HEARTH_SERVICES_INFERENCE_OBJECT_BUILDER_H_

#include <cstddef>
#include <cstdint>
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
  // One object of a plan. kFailedPrecondition for others than `boundary` needs under `layout`.
  struct Announced {
    ObjectId id;
    std::vector<uint64_t> slice_digests;
    // Its bytes on this process's device. Then no slices come, except for a remainder, whose bytes
    // the host needs too.
    std::shared_ptr<const std::byte> device_bytes = nullptr;
  };
  static absl::StatusOr<ObjectBuilder> Create(const KvLayout& layout, uint32_t boundary,
                                              std::vector<Announced> announced);

  // Bytes of each slice of an object. kFailedPrecondition when there is no such object.
  absl::StatusOr<size_t> SliceBytes(uint32_t object) const;
  // The address for the `bytes` bytes of the next piece. Pieces of one slice come in ascending
  // order. kFailedPrecondition for one without a place.
  absl::StatusOr<std::byte*> Place(const SliceHeader& piece, size_t bytes);
  // May be given the piece's bytes as they are copied; else PutPiece reads the slice again.
  SliceHasher* hasher() { return &hasher_; }
  // The piece was copied there. kDataLoss for a slice with another digest, and when Place was not
  // called.
  absl::Status PutPiece();
  // Place and PutPiece, with a copy of `data`.
  absl::Status Add(uint32_t object, uint32_t layer, uint64_t offset, absl::string_view data);
  // kDataLoss unless every slice is there.
  absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> Take();

  uint64_t bytes_added() const { return bytes_added_; }
  uint64_t bytes_on_device() const { return bytes_on_device_; }
  bool complete() const { return bytes_added_ == whole_bytes_; }

 private:
  struct Slot {
    std::shared_ptr<KvObject> object;
    std::vector<uint64_t> filled_bytes;  // by slice
  };
  explicit ObjectBuilder(const KvLayout& layout);
  uint64_t DigestOf(const std::byte* slice, size_t bytes) const;

  KvLayout layout_;
  std::vector<uint32_t> layers_[2];  // by group
  std::vector<Slot> slots_;
  uint64_t bytes_added_ = 0, bytes_on_device_ = 0, whole_bytes_ = 0;
  // Set by Place.
  Slot* placed_ = nullptr;
  size_t placed_slice_ = 0;
  size_t placed_bytes_ = 0;
  // hashed_slice_: the slice whose bytes hasher_ got, from the first on.
  SliceHasher hasher_;
  const std::byte* hashed_slice_ = nullptr;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_OBJECT_BUILDER_H_
