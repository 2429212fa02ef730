#include "services/events/block_ledger.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace hearth {

size_t BlockLedger::Known(const PointBlocks& point) const {
  const size_t contradiction = point.ids.size() + 1;
  size_t known = 0;
  absl::flat_hash_set<uint64_t> added;
  uint64_t parent = 0;
  for (const uint64_t id : point.ids) {
    const auto found = blocks_.find(id);
    if (id == 0) return contradiction;
    if (found == blocks_.end()) {
      if (!added.insert(id).second) return contradiction;
    } else {
      if (!added.empty() || found->second.parent_id != parent) return contradiction;
      ++known;
    }
    parent = id;
  }
  return known;
}

bool BlockLedger::Add(const PointBlocks& point, std::vector<KvEvent>* events) {
  assert(!point.ids.empty() && point.token_ids.size() == point.ids.size() * point.block_tokens);
  if (Has(point.point_id)) return true;
  const size_t known = Known(point);
  if (known > point.ids.size()) return false;
  const size_t added = point.ids.size() - known;
  if (added > max_blocks_ - blocks_.size()) return false;
  const auto tokens_of = [&point](size_t block) {
    return point.token_ids.begin() + static_cast<ptrdiff_t>(block * point.block_tokens);
  };
  BlocksStored stored;
  stored.block_tokens = point.block_tokens;
  stored.parent_id = known == 0 ? 0 : point.ids[known - 1];
  uint64_t parent = stored.parent_id;
  for (size_t i = known; i < point.ids.size(); ++i) {
    if (parent != 0) ++blocks_[parent].uses;
    blocks_[point.ids[i]] = {parent, 0, {tokens_of(i), tokens_of(i + 1)}};
    parent = point.ids[i];
  }
  ++blocks_[parent].uses;
  points_.emplace(point.point_id, parent);
  if (added == 0) return true;
  stored.ids.assign(point.ids.begin() + static_cast<ptrdiff_t>(known), point.ids.end());
  stored.token_ids.assign(tokens_of(known), point.token_ids.end());
  events->push_back(std::move(stored));
  return true;
}

void BlockLedger::Remove(const std::string& point_id, std::vector<KvEvent>* events) {
  const auto point = points_.find(point_id);
  if (point == points_.end()) return;
  uint64_t id = point->second;
  points_.erase(point);
  BlocksRemoved removed;  // the last of a prompt first
  while (id != 0) {
    const auto block = blocks_.find(id);
    assert(block != blocks_.end() && block->second.uses > 0);
    if (--block->second.uses > 0) break;
    removed.ids.push_back(id);
    id = block->second.parent_id;
    blocks_.erase(block);
  }
  if (!removed.ids.empty()) events->push_back(std::move(removed));
}

void BlockLedger::Keep(const absl::flat_hash_set<std::string>& point_ids,
                       std::vector<KvEvent>* events) {
  std::vector<std::string> gone;
  for (const auto& [id, last] : points_) {
    if (!point_ids.contains(id)) gone.push_back(id);
  }
  for (const std::string& id : gone) Remove(id, events);
}

std::vector<KvEvent> BlockLedger::Everything() const {
  std::vector<KvEvent> events;
  absl::flat_hash_set<uint64_t> told;
  for (const auto& [point, last] : points_) {
    BlocksStored stored;
    uint64_t id = last;
    for (; id != 0 && told.insert(id).second; id = blocks_.at(id).parent_id) {
      stored.ids.push_back(id);
    }
    if (stored.ids.empty()) continue;
    stored.parent_id = id;
    std::reverse(stored.ids.begin(), stored.ids.end());
    for (const uint64_t block : stored.ids) {
      const std::vector<uint32_t>& tokens = blocks_.at(block).token_ids;
      stored.token_ids.insert(stored.token_ids.end(), tokens.begin(), tokens.end());
      stored.block_tokens = static_cast<uint32_t>(tokens.size());
    }
    events.emplace_back(std::move(stored));
  }
  return events;
}

}  // namespace hearth
