#include "cache_store/shared/tier/shared_prompt.h"

namespace hearth {

SharedShape SharedPrompt::ShapeOf(const ObjectId& id) const {
  SharedShape shape;
  shape.id = id;
  const absl::Span<const uint32_t> ids = token_ids.subspan(id.begin, id.tokens);
  shape.token_ids.assign(ids.begin(), ids.end());
  shape.cut_offsets = SegmentOf(id)->CutOffsets();
  shape.slices = static_cast<uint32_t>(layout.LayersOf(id.group).size());
  shape.slice_bytes = layout.SliceBytes(id.tokens);
  return shape;
}

}  // namespace hearth
