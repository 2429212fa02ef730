#include "services/object_builder.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "services/proto_conversion.h"

namespace hearth {

ObjectBuilder::ObjectBuilder(const KvLayout& layout)
    : layout_(layout),
      layers_{layout.LayersOf(LayerGroup::kGlobal), layout.LayersOf(LayerGroup::kLocal)} {}

absl::StatusOr<ObjectBuilder> ObjectBuilder::Create(const KvLayout& layout, uint32_t boundary,
                                                    std::vector<Announced> announced) {
  const std::vector<ObjectId> needed = NeededObjects(layout, boundary);
  if (needed.size() != announced.size()) {
    return absl::FailedPreconditionError(absl::StrCat("plan: ", announced.size(), " objects; ",
                                                      boundary, " tokens need ", needed.size()));
  }
  ObjectBuilder builder(layout);
  builder.slots_.reserve(needed.size());
  for (size_t i = 0; i < needed.size(); ++i) {
    const size_t slices = builder.layers_[static_cast<int>(needed[i].group)].size();
    if (!(announced[i].id == needed[i]) || announced[i].slice_digests.size() != slices) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan: object ", i, " is not what ", boundary, " tokens need there"));
    }
    Slot slot;
    slot.filled_bytes.resize(slices);
    slot.object = std::make_shared<KvObject>();
    slot.object->id = needed[i];
    slot.object->slice_digests = std::move(announced[i].slice_digests);
    slot.object->size_bytes = slices * layout.SliceBytes(needed[i].tokens);
    slot.object->bytes = AllocateAligned(slot.object->size_bytes);
    builder.slots_.push_back(std::move(slot));
  }
  return builder;
}

absl::Status ObjectBuilder::Add(uint32_t object, uint32_t layer, uint64_t offset,
                                absl::string_view data) {
  if (object >= slots_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("slice: object ", object, " of ", slots_.size()));
  }
  Slot& slot = slots_[object];
  const int slice = SliceIndex(layers_[static_cast<int>(slot.object->id.group)], layer);
  if (slice < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("slice: layer ", layer, " is not in object ", object));
  }
  const size_t slice_bytes = layout_.SliceBytes(slot.object->id.tokens);
  uint64_t& filled = slot.filled_bytes[slice];
  if (offset != filled || data.empty() || data.size() > slice_bytes - filled) {
    return absl::FailedPreconditionError(
        absl::StrCat("slice: object ", object, " layer ", layer, " got [", offset, ", +",
                     data.size(), ") after ", filled, " of ", slice_bytes, " bytes"));
  }
  std::byte* const begin = slot.object->bytes.get() + slice * slice_bytes;
  std::memcpy(begin + filled, data.data(), data.size());
  filled += data.size();
  bytes_added_ += data.size();
  if (filled < slice_bytes) return absl::OkStatus();
  // Right after the copy: the slice is still in the processor's cache.
  if (SliceDigest(begin, slice_bytes) != slot.object->slice_digests[slice]) {
    return absl::DataLossError(absl::StrCat("slice: object ", object, " layer ", layer,
                                            " does not have the digest that the plan announced"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> ObjectBuilder::Take() {
  std::vector<std::shared_ptr<const KvObject>> objects;
  objects.reserve(slots_.size());
  for (Slot& slot : slots_) {
    const size_t slice_bytes = layout_.SliceBytes(slot.object->id.tokens);
    for (uint64_t filled : slot.filled_bytes) {
      if (filled != slice_bytes) {
        return absl::DataLossError(absl::StrCat("the stream ended after ", bytes_added_,
                                                " bytes, before every slice had come"));
      }
    }
    objects.push_back(std::move(slot.object));
  }
  slots_.clear();
  return objects;
}

}  // namespace hearth
