#include "cache_store/catalog/prefix_walk.h"

#include <algorithm>
#include <cassert>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

// How far presence reaches at the end of some segment.
struct Reach {
  bool globals = true;
  uint32_t local_run_begin = 0;  // local objects are present from here to the end
};

class Walker {
 public:
  explicit Walker(const KvLayout& layout)
      : layout_(layout),
        has_global_(!layout.LayersOf(LayerGroup::kGlobal).empty()),
        has_local_(!layout.LayersOf(LayerGroup::kLocal).empty()) {}

  // `end`: where the segment ends, stored or not.
  Reach Extend(const Reach& before, const SegmentNode* node, uint32_t end) const {
    Reach after = before;
    if (has_global_ && (node == nullptr || node->objects[0] == nullptr)) after.globals = false;
    if (has_local_ && (node == nullptr || node->objects[1] == nullptr)) after.local_run_begin = end;
    return after;
  }
  BoundaryState State(const Reach& reach, SegmentNode* node, uint32_t end) const {
    BoundaryState state;
    state.boundary = end;
    state.node = node;
    state.globals_present = node != nullptr && reach.globals;
    state.tail_present = node != nullptr && reach.local_run_begin <= LocalTailBegin(layout_, end);
    return state;
  }

 private:
  const KvLayout& layout_;
  const bool has_global_, has_local_;
};

}  // namespace

std::vector<BoundaryState> WalkPrompt(const PrefixIndex& index, const KvLayout& layout,
                                      const PromptChain& chain,
                                      absl::Span<const uint32_t> token_ids, uint32_t max_boundary) {
  const uint32_t chunk_tokens = layout.chunk_tokens;
  const Walker walker(layout);
  std::vector<BoundaryState> states;
  Reach reach;
  SegmentNode* parent = index.Find(chain.root);
  auto remainder = chain.remainders.begin();
  for (uint32_t begin = 0; begin < max_boundary; begin += chunk_tokens) {
    const uint32_t limit = std::min(begin + chunk_tokens - 1, max_boundary);
    if (!CutsAreKeyed(layout.exactness)) {
      if (parent != nullptr) {
        std::vector<SegmentNode*> found = PrefixIndex::RemaindersOf(
            parent, token_ids.subspan(begin, limit - begin), chunk_tokens);
        for (auto it = found.rbegin(); it != found.rend(); ++it) {
          const uint32_t end = (*it)->end();
          states.push_back(walker.State(walker.Extend(reach, *it, end), *it, end));
        }
      }
    } else {
      const auto stop = chain.remainders.end();
      for (; remainder != stop && remainder->segment.end() <= limit; ++remainder) {
        const uint32_t end = remainder->segment.end();
        SegmentNode* node = parent == nullptr ? nullptr : index.Find(*remainder, token_ids);
        states.push_back(walker.State(walker.Extend(reach, node, end), node, end));
      }
    }
    if (begin + chunk_tokens > max_boundary) break;
    const KeyedSegment& chunk = chain.chunks[begin / chunk_tokens];
    parent = parent == nullptr ? nullptr : index.Find(chunk, token_ids);
    reach = walker.Extend(reach, parent, chunk.segment.end());
    states.push_back(walker.State(reach, parent, chunk.segment.end()));
  }
  return states;
}

std::vector<const StoredObject*> ObjectsOf(const KvLayout& layout, SegmentNode* last) {
  std::vector<SegmentNode*> path;
  for (SegmentNode* node = last; node->parent != nullptr; node = node->parent) path.push_back(node);
  std::reverse(path.begin(), path.end());
  std::vector<const StoredObject*> objects;
  for (const ObjectId& id : NeededObjects(layout, last->end())) {
    SegmentNode* node = path[id.begin / layout.chunk_tokens];
    assert(node->begin == id.begin && node->token_ids.size() == id.tokens);
    const StoredObject* object = node->objects[static_cast<size_t>(id.group)];
    if (object == nullptr) return {};
    objects.push_back(object);
  }
  return objects;
}

std::vector<uint32_t> TokensOf(const SegmentNode* last) {
  std::vector<uint32_t> tokens(last->end());
  for (const SegmentNode* node = last; node->parent != nullptr; node = node->parent) {
    std::copy(node->token_ids.begin(), node->token_ids.end(), tokens.begin() + node->begin);
  }
  return tokens;
}

std::vector<uint32_t> CutsOf(const SegmentNode* last, const KvLayout& layout) {
  std::vector<uint32_t> cuts;
  if (!CutsAreKeyed(layout.exactness)) return cuts;
  for (const SegmentNode* node = last; node->parent != nullptr; node = node->parent) {
    for (auto it = node->cut_offsets.rbegin(); it != node->cut_offsets.rend(); ++it) {
      cuts.push_back(node->begin + *it);
    }
  }
  std::reverse(cuts.begin(), cuts.end());
  if (last->end() % layout.chunk_tokens != 0) cuts.push_back(last->end());
  return cuts;
}

}  // namespace hearth
