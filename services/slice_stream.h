// Slices to and from the stream: cutting them into pieces of at most kMaxSlicePieceBytes, and
// putting the pieces of a publish together again.
//
// Thread safety: none; one stream, one thread.
#ifndef HEARTH_SERVICES_SLICE_STREAM_H_
#define HEARTH_SERVICES_SLICE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache_store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "proto/kv_layout.h"

namespace hearth {

// (object index, layer) of every slice of a plan, in the order in which they are sent: layer by
// layer, so that layer 0 can run while layer 1 is on the wire; object by object when the disk has
// part of it, as they lie there.
struct SliceRef {
  uint32_t object = 0;
  uint32_t layer = 0;
};
std::vector<SliceRef> SliceOrder(const LookupPlan& plan);

// Calls `send` for each piece of `bytes`, ascending; stops at the first false and returns it.
bool ForEachPiece(absl::Span<const std::byte> bytes,
                  const std::function<bool(uint64_t offset, absl::Span<const std::byte>)>& send);

// Takes the pieces of a publish in the order of arrival and hands whole slices to the session.
// Invariants: one slice is open at a time; its pieces come without gaps, from offset 0 on.
class SliceAssembler {
 public:
  SliceAssembler(const PublishSpec& spec, const KvLayout& layout, PublishSession* session);

  // Takes the bytes out of `piece`. kInvalidArgument for a piece that does not fit.
  absl::Status Add(v1::SliceData* piece);
  // kInvalidArgument when a slice is still open.
  absl::Status Finish() const;

 private:
  absl::StatusOr<size_t> ExpectedBytes(const v1::SliceData& piece) const;

  const KvLayout layout_;
  const std::vector<uint32_t> layers_[2];  // by group
  std::vector<ObjectId> objects_;
  std::vector<bool> needed_;
  PublishSession* const session_;
  SliceRef open_;
  size_t open_bytes_ = 0;  // the whole size of the open slice; 0: none is open
  std::shared_ptr<std::string> buffer_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SLICE_STREAM_H_
