#include "services/inference/object_builder.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {

ObjectBuilder::ObjectBuilder(const KvLayout& layout)
    : layout_(layout),
      layers_{layout.LayersOf(LayerGroup::kGlobal), layout.LayersOf(LayerGroup::kLocal)} {}

absl::StatusOr<ObjectBuilder> ObjectBuilder::Create(const KvLayout& layout, uint32_t boundary,
                                                    std::vector<Announced> announced) {
  const std::vector<ObjectId> needed = NeededObjects(layout, boundary);
  if (needed.size() != announced.size()) {
    return absl::FailedPreconditionError(absl::StrCat("plan: ", announced.size(),
                                                      " objects; a prefix of ", boundary,
                                                      " tokens needs ", needed.size()));
  }
  ObjectBuilder builder(layout);
  builder.slots_.reserve(needed.size());
  for (size_t i = 0; i < needed.size(); ++i) {
    const size_t slices = builder.layers_[static_cast<int>(needed[i].group)].size();
    if (!(announced[i].id == needed[i]) || announced[i].slice_digests.size() != slices) {
      return absl::FailedPreconditionError(absl::StrCat(
          "plan: object ", i, " is not the object that a prefix of ", boundary, " tokens needs"));
    }
    Slot slot;
    slot.filled_bytes.resize(slices);
    slot.is_reserved.resize(slices);
    slot.object = std::make_shared<KvObject>();
    slot.object->id = needed[i];
    slot.object->slice_digests = std::move(announced[i].slice_digests);
    slot.object->size_bytes = slices * layout.SliceBytes(needed[i].tokens);
    slot.object->device_bytes = std::move(announced[i].device_bytes);
    slot.object->check_device_bytes = std::move(announced[i].check_device_bytes);
    builder.whole_bytes_ += slot.object->size_bytes;
    if (slot.object->device_bytes != nullptr && needed[i].tokens == layout.chunk_tokens) {
      slot.filled_bytes.assign(slices, layout.SliceBytes(needed[i].tokens));
      builder.bytes_added_ += slot.object->size_bytes;
      builder.bytes_on_device_ += slot.object->size_bytes;
    } else {
      slot.object->bytes = AllocateAligned(slot.object->size_bytes);
    }
    builder.slots_.push_back(std::move(slot));
  }
  return builder;
}

absl::StatusOr<size_t> ObjectBuilder::SliceBytes(uint32_t object) const {
  if (object >= slots_.size()) {
    return absl::FailedPreconditionError(absl::StrCat("slice: there is no object ", object,
                                                      "; objects in the plan: ", slots_.size()));
  }
  return layout_.SliceBytes(slots_[object].object->id.tokens);
}

absl::StatusOr<ObjectBuilder::Position> ObjectBuilder::PositionOf(const SliceHeader& piece,
                                                                  size_t bytes) {
  const absl::StatusOr<size_t> whole = SliceBytes(piece.object);
  if (!whole.ok()) return whole.status();
  Slot& slot = slots_[piece.object];
  const int slice = SliceIndex(layers_[static_cast<int>(slot.object->id.group)], piece.layer);
  if (slice < 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "slice: layer ", piece.layer, " is not one of the layers of object ", piece.object));
  }
  const size_t slice_bytes = *whole;
  const uint64_t filled = slot.filled_bytes[slice];
  if (piece.offset != filled || bytes == 0 || bytes > slice_bytes - filled) {
    return absl::FailedPreconditionError(
        absl::StrCat("slice: object ", piece.object, " layer ", piece.layer,
                     " must continue at its next byte; got [", piece.offset, ", +", bytes,
                     ") after ", filled, " of ", slice_bytes, " bytes"));
  }
  assert(slot.object->bytes != nullptr);  // an object on the device is complete from the start
  return Position{&slot, static_cast<size_t>(slice),
                  slot.object->bytes.get() + slice * slice_bytes};
}

absl::StatusOr<ObjectBuilder::Reserved> ObjectBuilder::Reserve(uint32_t object, uint32_t layer) {
  const absl::StatusOr<size_t> bytes = SliceBytes(object);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<Position> position = PositionOf({object, layer, 0}, *bytes);
  if (!position.ok()) return position.status();
  const auto [slot, slice, begin] = *position;
  slot->filled_bytes[slice] = *bytes;
  slot->is_reserved[slice] = true;
  return Reserved{begin, *bytes, slot->object->slice_digests[slice], object, slice};
}

absl::Status ObjectBuilder::PutReserved(const Reserved& filled, uint64_t digest) {
  assert(filled.object < slots_.size());
  Slot& slot = slots_[filled.object];
  assert(slot.is_reserved.at(filled.slice));
  if (absl::Status status = CheckDigest(slot, filled.slice, digest); !status.ok()) return status;
  slot.is_reserved[filled.slice] = false;
  bytes_added_ += filled.bytes;
  assert(bytes_added_ <= whole_bytes_);
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> ObjectBuilder::Place(const SliceHeader& piece, size_t bytes) {
  const absl::StatusOr<Position> position = PositionOf(piece, bytes);
  if (!position.ok()) return position.status();
  const auto [slot, slice, begin] = *position;
  placed_ = slot;
  placed_slice_ = slice;
  placed_bytes_ = bytes;
  if (piece.offset == 0) {
    hasher_.Begin();
    hashed_slice_ = begin;
  } else if (hashed_slice_ != begin) {
    hashed_slice_ = nullptr;  // the stream changes to another slice before this one is whole
  }
  return begin + piece.offset;
}

uint64_t ObjectBuilder::DigestOf(const std::byte* slice, size_t bytes) const {
  if (hashed_slice_ == slice && hasher_.bytes() == bytes) return hasher_.digest();
  return SliceDigest(slice, bytes);
}

absl::Status ObjectBuilder::CheckDigest(const Slot& slot, size_t slice, uint64_t digest) {
  if (digest == slot.object->slice_digests[slice]) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("slice ", slice, " of the object at ",
                                          slot.object->id.begin,
                                          " does not match the digest that the plan announced"));
}

absl::Status ObjectBuilder::PutPiece() {
  if (placed_ == nullptr) return absl::DataLossError("slice: empty message");
  Slot& slot = *std::exchange(placed_, nullptr);
  const size_t slice_bytes = layout_.SliceBytes(slot.object->id.tokens);
  slot.filled_bytes[placed_slice_] += placed_bytes_;
  bytes_added_ += placed_bytes_;
  assert(slot.filled_bytes[placed_slice_] <= slice_bytes && bytes_added_ <= whole_bytes_);
  if (slot.filled_bytes[placed_slice_] < slice_bytes) return absl::OkStatus();
  const std::byte* const slice = slot.object->bytes.get() + placed_slice_ * slice_bytes;
  return CheckDigest(slot, placed_slice_, DigestOf(slice, slice_bytes));
}

absl::Status ObjectBuilder::Add(uint32_t object, uint32_t layer, uint64_t offset,
                                absl::string_view data) {
  const absl::StatusOr<std::byte*> to = Place({object, layer, offset}, data.size());
  if (!to.ok()) return to.status();
  hasher_.AddCopy(*to, data.data(), data.size());
  return PutPiece();
}

absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> ObjectBuilder::Take() {
  if (!complete()) {
    return absl::DataLossError(
        absl::StrCat("the stream ended after ", bytes_added_, " bytes, before all slices arrived"));
  }
  std::vector<std::shared_ptr<const KvObject>> objects;
  objects.reserve(slots_.size());
  for (Slot& slot : slots_) objects.push_back(std::move(slot.object));
  slots_.clear();
  return objects;
}

}  // namespace hearth
