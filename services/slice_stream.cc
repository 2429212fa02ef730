#include "services/slice_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/proto_conversion.h"

namespace hearth {

std::vector<SliceRef> SliceOrder(const LookupPlan& plan) {
  std::vector<SliceRef> order;
  for (uint32_t i = 0; i < plan.objects.size(); ++i) {
    for (uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
      order.push_back({i, layer});
    }
  }
  if (plan.slowest_tier != Tier::kDisk) {
    std::stable_sort(order.begin(), order.end(),
                     [](const SliceRef& a, const SliceRef& b) { return a.layer < b.layer; });
  }
  return order;
}

bool ForEachPiece(absl::Span<const std::byte> bytes,
                  const std::function<bool(uint64_t, absl::Span<const std::byte>)>& send) {
  for (size_t offset = 0; offset < bytes.size(); offset += kMaxSlicePieceBytes) {
    if (!send(offset, bytes.subspan(offset, kMaxSlicePieceBytes))) return false;
  }
  return true;
}

SliceAssembler::SliceAssembler(const PublishSpec& spec, const KvLayout& layout,
                               PublishSession* session)
    : layout_(layout),
      layers_{layout.LayersOf(LayerGroup::kGlobal), layout.LayersOf(LayerGroup::kLocal)},
      needed_(spec.objects.size(), false),
      session_(session) {
  objects_.reserve(spec.objects.size());
  for (const PublishObject& object : spec.objects) objects_.push_back(object.id);
  for (uint32_t index : session->needed()) needed_[index] = true;
}

absl::StatusOr<size_t> SliceAssembler::ExpectedBytes(const v1::SliceData& piece) const {
  if (piece.object() >= objects_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("slice.object: ", piece.object(),
                                                   "; begin named ", objects_.size(), " objects"));
  }
  if (!needed_[piece.object()]) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice.object: ", piece.object(), " was not asked for by the plan"));
  }
  const ObjectId& id = objects_[piece.object()];
  if (SliceIndex(layers_[static_cast<int>(id.group)], piece.layer()) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice.layer: ", piece.layer(), " is not a layer of object ", piece.object()));
  }
  return layout_.SliceBytes(id.tokens);
}

absl::Status SliceAssembler::Add(v1::SliceData* piece) {
  if (piece->data().empty() || piece->data().size() > kMaxSlicePieceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("slice.data: ", piece->data().size(),
                                                   " bytes; a piece has 1..", kMaxSlicePieceBytes));
  }
  if (open_bytes_ == 0) {
    absl::StatusOr<size_t> bytes = ExpectedBytes(*piece);
    if (!bytes.ok()) return bytes.status();
    open_ = {piece->object(), piece->layer()};
    open_bytes_ = *bytes;
    buffer_ = std::make_shared<std::string>();
  } else if (piece->object() != open_.object || piece->layer() != open_.layer) {
    return absl::InvalidArgumentError(absl::StrCat("slice: object ", piece->object(), " layer ",
                                                   piece->layer(), " before object ", open_.object,
                                                   " layer ", open_.layer, " was complete"));
  }
  if (piece->offset() != buffer_->size() || piece->data().size() > open_bytes_ - buffer_->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slice.offset: [", piece->offset(), ", +", piece->data().size(), "); expected offset ",
        buffer_->size(), " in a slice of ", open_bytes_, " bytes"));
  }
  if (buffer_->empty() && piece->data().size() == open_bytes_) {
    *buffer_ = std::move(*piece->mutable_data());
  } else {
    buffer_->reserve(open_bytes_);
    buffer_->append(piece->data());
  }
  if (buffer_->size() < open_bytes_) return absl::OkStatus();
  open_bytes_ = 0;
  std::shared_ptr<std::string> whole = std::move(buffer_);
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(whole->data()),
                                          whole->size());
  return session_->PutSlice(open_.object, open_.layer, SliceView{std::move(whole), bytes});
}

absl::Status SliceAssembler::Finish() const {
  if (open_bytes_ == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("commit: object ", open_.object, " layer ",
                                                 open_.layer, " has only ", buffer_->size(), " of ",
                                                 open_bytes_, " bytes"));
}

}  // namespace hearth
