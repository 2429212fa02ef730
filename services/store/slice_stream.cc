#include "services/store/slice_stream.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {

std::vector<SliceRef> SliceOrder(const LookupPlan& plan) {
  std::vector<SliceRef> order;
  for (uint32_t i = 0; i < plan.objects.size(); ++i) {
    for (uint32_t layer = 0; layer < plan.layout.layers.size(); ++layer) {
      if (plan.layout.layers[layer] == plan.objects[i].id.group) order.push_back({i, layer});
    }
  }
  if (plan.slowest_tier != Tier::kDisk) {
    std::stable_sort(order.begin(), order.end(),
                     [](const SliceRef& a, const SliceRef& b) { return a.layer < b.layer; });
  }
  return order;
}

SliceAssembler::SliceAssembler(const PublishSpec& spec, const KvLayout& layout,
                               PublishSession* session)
    : layout_(layout),
      layers_{layout.LayersOf(LayerGroup::kGlobal), layout.LayersOf(LayerGroup::kLocal)},
      needed_(spec.objects.size(), false),
      session_(session) {
  objects_.reserve(spec.objects.size());
  for (const PublishObject& object : spec.objects) objects_.push_back(object.id);
  for (uint32_t index : session->needed()) {
    assert(index < needed_.size());
    needed_[index] = true;
  }
}

absl::StatusOr<size_t> SliceAssembler::ExpectedBytes(const SliceHeader& piece) const {
  if (piece.object >= objects_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("slice.object: ", piece.object,
                                                   " is not an object of begin, which has ",
                                                   objects_.size(), " objects"));
  }
  if (!needed_[piece.object]) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice.object: ", piece.object, " was not requested by the plan"));
  }
  const ObjectId& id = objects_[piece.object];
  if (SliceIndex(layers_[static_cast<int>(id.group)], piece.layer) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice.layer: ", piece.layer, " is not a layer of object ", piece.object));
  }
  return layout_.SliceBytes(id.tokens);
}

absl::StatusOr<std::byte*> SliceAssembler::Place(const SliceHeader& piece, size_t bytes) {
  if (bytes == 0 || bytes > kMaxSlicePieceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice.data: must have 1 to ", kMaxSlicePieceBytes, " bytes; got ", bytes));
  }
  if (open_bytes_ == 0) {
    absl::StatusOr<size_t> whole = ExpectedBytes(piece);
    if (!whole.ok()) return whole.status();
    absl::StatusOr<std::shared_ptr<std::byte>> buffer = session_->AllocateSlice(*whole);
    if (!buffer.ok()) return buffer.status();
    buffer_ = *std::move(buffer);
    open_ = {piece.object, piece.layer};
    open_bytes_ = *whole;
    placed_bytes_ = 0;
  } else if (piece.object != open_.object || piece.layer != open_.layer) {
    return absl::InvalidArgumentError(absl::StrCat("slice: got object ", piece.object, " layer ",
                                                   piece.layer, " before object ", open_.object,
                                                   " layer ", open_.layer, " was complete"));
  }
  if (piece.offset != placed_bytes_ || bytes > open_bytes_ - placed_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("slice.offset: [", piece.offset, ", +", bytes,
                                                   "); expected offset ", placed_bytes_,
                                                   " in a slice of ", open_bytes_, " bytes"));
  }
  assert(buffer_ != nullptr && placed_bytes_ + bytes <= open_bytes_);
  pending_bytes_ = bytes;
  return buffer_.get() + placed_bytes_;
}

absl::Status SliceAssembler::PutPiece() {
  if (pending_bytes_ == 0) return absl::InvalidArgumentError("publish: empty message");
  placed_bytes_ += std::exchange(pending_bytes_, 0);
  assert(buffer_ != nullptr && placed_bytes_ <= open_bytes_);
  if (placed_bytes_ < open_bytes_) return absl::OkStatus();
  const absl::Span<const std::byte> bytes(buffer_.get(), std::exchange(open_bytes_, 0));
  return session_->PutSlice(open_.object, open_.layer, SliceView{std::move(buffer_), bytes});
}

absl::Status SliceAssembler::Finish() const {
  if (open_bytes_ == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("commit: object ", open_.object, " layer ",
                                                 open_.layer, " has only ", placed_bytes_, " of ",
                                                 open_bytes_, " bytes"));
}

}  // namespace hearth
