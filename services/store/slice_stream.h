// The order of the slices in a fetch stream; and SliceAssembler, which joins the pieces of a
// publish to slices.
//
// Thread safety: none; one stream, one thread.
#ifndef HEARTH_SERVICES_STORE_SLICE_STREAM_H_
#define HEARTH_SERVICES_STORE_SLICE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache_store/store/store_publisher.h"
#include "proto/kv_layout.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

// One slice of a plan. Slices are sent layer by layer, so that a worker can compute layer 0 while
// layer 1 is on the wire. If some objects are on disk, slices are sent object by object, in the
// order of the disk.
struct SliceRef {
  uint32_t object = 0;
  uint32_t layer = 0;
};
std::vector<SliceRef> SliceOrder(const LookupPlan& plan);

// SliceAssembler: tells where to copy the pieces of a publish, and hands whole slices to the
// session.
// Invariants: one slice is open at a time; its pieces come without gaps, from offset 0 on.
class SliceAssembler {
 public:
  SliceAssembler(const PublishSpec& spec, const KvLayout& layout, PublishSession* session);

  // Returns the address for the next piece, which has `bytes` bytes. kInvalidArgument if the piece
  // does not fit, kResourceExhausted if the session has no room for the slice.
  absl::StatusOr<std::byte*> Place(const SliceHeader& piece, size_t bytes);
  // Call when the piece was copied to its address. If the slice is whole, hands it to the session
  // and returns the session's error. kInvalidArgument if Place was not called before.
  absl::Status PutPiece();
  // kInvalidArgument if a slice is still open.
  absl::Status Finish() const;

 private:
  absl::StatusOr<size_t> ExpectedBytes(const SliceHeader& piece) const;

  const KvLayout layout_;
  const std::vector<uint32_t> layers_[2];  // numbers of the layers in each layer group
  std::vector<ObjectId> objects_;
  std::vector<bool> needed_;
  PublishSession* const session_;
  SliceRef open_;
  size_t open_bytes_ = 0;  // the full size of the open slice; 0: no slice is open
  std::shared_ptr<std::byte> buffer_;
  size_t placed_bytes_ = 0;   // bytes of the open slice that have arrived
  size_t pending_bytes_ = 0;  // bytes of the piece that is being copied
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_SLICE_STREAM_H_
