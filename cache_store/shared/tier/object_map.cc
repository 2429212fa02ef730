#include "cache_store/shared/tier/object_map.h"

#include "proto/restore_rule.h"

namespace hearth {

ObjectMap::ObjectMap(const KvLayout& layout, const PromptChain& chain, uint32_t usable_here)
    : layout_(layout),
      chain_(chain),
      usable_here_(usable_here),
      has_local_(!layout.LayersOf(LayerGroup::kLocal).empty()),
      has_global_(!layout.LayersOf(LayerGroup::kGlobal).empty()) {
  if (usable_here == 0) return;
  for (const ObjectId& id : NeededObjects(layout, usable_here)) Set(id, Place::kHere);
}

std::vector<ObjectId> ObjectMap::ToProbe() const {
  std::vector<ObjectId> ids;
  const auto add = [&](const Segment& segment) {
    // A longer boundary's tail begins no earlier than that of the one that is here.
    if (segment.end() <= usable_here_) return;
    if (has_global_) ids.push_back({segment.begin, segment.tokens, LayerGroup::kGlobal});
    if (has_local_) ids.push_back({segment.begin, segment.tokens, LayerGroup::kLocal});
  };
  for (const KeyedSegment& chunk : chain_.chunks) add(chunk.segment);
  for (const KeyedSegment& remainder : chain_.remainders) add(remainder.segment);
  return ids;
}

uint32_t ObjectMap::KnownTokens() const {
  const LayerGroup group = has_global_ ? LayerGroup::kGlobal : LayerGroup::kLocal;
  uint32_t known = 0;
  while (known < chain_.chunks.size() && HasChunk(known, group)) ++known;
  return known * layout_.chunk_tokens;
}

bool ObjectMap::HasRemainder(uint32_t boundary) const {
  const uint32_t tokens = boundary % layout_.chunk_tokens;
  if (tokens == 0) return true;
  const auto has = [&](LayerGroup group) { return Has(boundary - tokens, tokens, group); };
  const bool needs_local = has_local_ && boundary > LocalTailBegin(layout_, boundary);
  return (!has_global_ || has(LayerGroup::kGlobal)) && (!needs_local || has(LayerGroup::kLocal));
}

std::vector<uint32_t> ObjectMap::Restorable(absl::Span<const uint32_t> candidates,
                                            uint32_t above) const {
  size_t globals = 0;  // chunks from the beginning on
  while (HasChunk(globals, LayerGroup::kGlobal)) ++globals;
  std::vector<uint32_t> found;
  size_t next = 0, gap_end = 0;  // the last chunk without its local object ends there
  for (const uint32_t boundary : candidates) {
    const size_t chunks = boundary / layout_.chunk_tokens;
    if (has_global_ && chunks > globals) break;
    for (; next < chunks; ++next) {
      if (!HasChunk(next, LayerGroup::kLocal)) gap_end = next + 1;
    }
    const size_t tail = LocalTailBegin(layout_, boundary) / layout_.chunk_tokens;
    if (boundary <= above || (has_local_ && gap_end > tail)) continue;
    if (HasRemainder(boundary)) found.push_back(boundary);
  }
  return found;
}

uint32_t ObjectMap::Longest(absl::Span<const uint32_t> candidates, uint32_t above) const {
  const std::vector<uint32_t> restorable = Restorable(candidates, above);
  return restorable.empty() ? 0 : restorable.back();
}

std::vector<ObjectId> ObjectMap::NeededFromEngine(uint32_t boundary) const {
  std::vector<ObjectId> ids;
  for (const ObjectId& id : NeededObjects(layout_, boundary)) {
    if (Of(id) == Place::kEngine) ids.push_back(id);
  }
  return ids;
}

}  // namespace hearth
