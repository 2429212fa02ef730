#include "cache_store/shared/tier/object_map.h"

#include <algorithm>

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

ObjectMap::Place ObjectMap::Of(const ObjectId& id) const {
  const auto it = places_.find(id);
  return it == places_.end() ? Place::kNowhere : it->second;
}

bool ObjectMap::HasAll(uint32_t boundary) const {
  const std::vector<ObjectId> needed = NeededObjects(layout_, boundary);
  return std::all_of(needed.begin(), needed.end(),
                     [this](const ObjectId& id) { return Of(id) != Place::kNowhere; });
}

uint32_t ObjectMap::KnownTokens() const {
  uint32_t known = 0;
  const LayerGroup group = has_global_ ? LayerGroup::kGlobal : LayerGroup::kLocal;
  for (const KeyedSegment& chunk : chain_.chunks) {
    const ObjectId id{chunk.segment.begin, chunk.segment.tokens, group};
    if (Of(id) == Place::kNowhere) break;
    known = chunk.segment.end();
  }
  return known;
}

uint32_t ObjectMap::Longest(absl::Span<const uint32_t> candidates, uint32_t above) const {
  const uint32_t known = KnownTokens();
  for (auto it = candidates.rbegin(); it != candidates.rend() && *it > above; ++it) {
    const uint32_t begin = (*it - 1) / layout_.chunk_tokens * layout_.chunk_tokens;
    if (has_global_ && begin > known) continue;
    // Most boundaries lack the end of their tail: seen without listing all that they need.
    const bool needs_tail = has_local_ && layout_.window > 1;
    if (needs_tail && Of({begin, *it - begin, LayerGroup::kLocal}) == Place::kNowhere) continue;
    if (HasAll(*it)) return *it;
  }
  return 0;
}

std::vector<ObjectId> ObjectMap::NeededFromEngine(uint32_t boundary) const {
  std::vector<ObjectId> ids;
  for (const ObjectId& id : NeededObjects(layout_, boundary)) {
    if (Of(id) == Place::kEngine) ids.push_back(id);
  }
  return ids;
}

}  // namespace hearth
