#include "cache_store/catalog/prefix_walk.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/algorithm/container.h"
#include "cache_store/catalog/expiry_schedule.h"
#include "proto/restore_rule.h"

namespace hearth {

void PromptWalk::Sums::Add(const Sums& other, uint64_t times) {
  bytes += times * other.bytes;
  cold += times * other.cold;
  off_device += times * other.off_device;
}

PromptWalk::PromptWalk(const PrefixIndex* index, const KvLayout* layout, const PromptChain* chain,
                       absl::Span<const uint32_t> token_ids, uint32_t max_boundary, absl::Time now,
                       OnDevice on_device)
    : index_(index),
      layout_(layout),
      chain_(chain),
      token_ids_(token_ids),
      max_boundary_(max_boundary),
      now_(now),
      on_device_(std::move(on_device)),
      has_global_(layout->LayerCount(LayerGroup::kGlobal) > 0),
      has_local_(layout->LayerCount(LayerGroup::kLocal) > 0),
      parent_(index->Find(chain->root)) {}

PromptWalk::Local PromptWalk::Count(StoredObject* object, uint32_t end) const {
  const bool is_off_device = on_device_ == nullptr || !on_device_(object);
  return {end, {object->bytes(), !object->in_host(), is_off_device}, InheritedEnd(*object, now_)};
}

void PromptWalk::Leave(uint32_t end) {
  const uint32_t tail_begin = LocalTailBegin(*layout_, end);
  for (; !tail_.empty() && tail_.front().end <= tail_begin; tail_.pop_front()) {
    local_sums_.Add(tail_.front().sums, uint64_t{0} - 1);
  }
  while (!earliest_.empty() && earliest_.front().end <= tail_begin) earliest_.pop_front();
}

// After a chunk's end was handled, the chunk's objects count as lying before begin_ of the next
// chunk.
BoundaryState PromptWalk::StateAt(SegmentNode* node, uint32_t end, bool is_chunk) {
  const auto object_of = [this, node](LayerGroup group) -> StoredObject* {
    StoredObject* object = node == nullptr ? nullptr : node->objects[static_cast<size_t>(group)];
    return object == nullptr || object->hidden(now_) ? nullptr : object;
  };
  StoredObject* const global = object_of(LayerGroup::kGlobal);
  StoredObject* const local = object_of(LayerGroup::kLocal);
  const bool globals = globals_ && (!has_global_ || global != nullptr);
  const uint32_t run_begin = has_local_ && local == nullptr ? end : local_run_begin_;
  Leave(end);
  BoundaryState state;
  state.boundary = end;
  state.node = node;
  state.globals_present = node != nullptr && globals;
  state.tail_present = node != nullptr && run_begin <= LocalTailBegin(*layout_, end);
  Sums sums = global_sums_;
  sums.Add(local_sums_, 1);
  state.until = earliest_.empty() ? until_ : std::min(until_, earliest_.front().until);
  for (StoredObject* object : {global, local}) {
    if (object == nullptr) continue;
    const Local counted = Count(object, end);
    sums.Add(counted.sums, 1);
    state.until = std::min(state.until, counted.until);
    if (!is_chunk) continue;
    if (object == global) {
      global_sums_.Add(counted.sums, 1);
      until_ = std::min(until_, counted.until);
      continue;
    }
    local_sums_.Add(counted.sums, 1);
    tail_.push_back(counted);
    while (!earliest_.empty() && earliest_.back().until >= counted.until) earliest_.pop_back();
    earliest_.push_back(counted);
  }
  state.bytes = sums.bytes;
  state.tier = sums.off_device == 0 ? Tier::kGpu : sums.cold == 0 ? Tier::kHost : Tier::kDisk;
  if (is_chunk) {
    globals_ = globals;
    local_run_begin_ = run_begin;
  }
  return state;
}

bool PromptWalk::Next(std::vector<BoundaryState>* states) {
  const uint32_t chunk_tokens = layout_->chunk_tokens;
  states->clear();
  if (begin_ >= max_boundary_) return false;
  const uint32_t limit = std::min(begin_ + chunk_tokens - 1, max_boundary_);
  if (CutsAreKeyed(layout_->exactness)) {
    const std::vector<KeyedSegment>& remainders = chain_->remainders;
    for (; remainder_ < remainders.size(); ++remainder_) {
      const KeyedSegment& remainder = remainders[remainder_];
      if (remainder.segment.end() > limit) break;
      SegmentNode* node = parent_ == nullptr ? nullptr : index_->Find(remainder, token_ids_);
      states->push_back(StateAt(node, remainder.segment.end(), false));
    }
  } else if (parent_ != nullptr) {
    const std::vector<SegmentNode*> found = PrefixIndex::RemaindersOf(
        parent_, token_ids_.subspan(begin_, limit - begin_), chunk_tokens);
    for (auto it = found.rbegin(); it != found.rend(); ++it) {
      states->push_back(StateAt(*it, (*it)->end(), false));
    }
  }
  if (begin_ + chunk_tokens <= max_boundary_) {
    const KeyedSegment& chunk = chain_->chunks[begin_ / chunk_tokens];
    parent_ = parent_ == nullptr ? nullptr : index_->Find(chunk, token_ids_);
    states->push_back(StateAt(parent_, chunk.segment.end(), true));
  }
  begin_ += chunk_tokens;
  return true;
}

std::vector<StoredObject*> ObjectsOf(const KvLayout& layout, SegmentNode* last) {
  std::vector<SegmentNode*> path;
  for (SegmentNode* node = last; node->parent != nullptr; node = node->parent) path.push_back(node);
  std::reverse(path.begin(), path.end());
  std::vector<StoredObject*> objects;
  for (const ObjectId& id : NeededObjects(layout, last->end())) {
    SegmentNode* node = path[id.begin / layout.chunk_tokens];
    assert(node->begin() == id.begin && node->token_ids().size() == id.tokens);
    StoredObject* object = node->objects[static_cast<size_t>(id.group)];
    if (object == nullptr) return {};
    objects.push_back(object);
  }
  return objects;
}

std::vector<uint32_t> TokensOf(const SegmentNode* last) {
  std::vector<uint32_t> tokens(last->end());
  for (const SegmentNode* node = last; node->parent != nullptr; node = node->parent) {
    absl::c_copy(node->token_ids(), tokens.begin() + node->begin());
  }
  return tokens;
}

std::vector<uint32_t> CutsOf(const SegmentNode* last, const KvLayout& layout) {
  std::vector<uint32_t> cuts;
  if (!CutsAreKeyed(layout.exactness)) return cuts;
  for (const SegmentNode* node = last; node->parent != nullptr; node = node->parent) {
    const absl::Span<const uint32_t> offsets = node->cut_offsets();
    for (auto it = offsets.rbegin(); it != offsets.rend(); ++it) {
      cuts.push_back(node->begin() + *it);
    }
  }
  std::reverse(cuts.begin(), cuts.end());
  if (last->end() % layout.chunk_tokens != 0) cuts.push_back(last->end());
  return cuts;
}

}  // namespace hearth
