#include "cache_store/catalog/prefix_index.h"

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

using Tokens = absl::Span<const uint32_t>;

bool Less(Tokens a, Tokens b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

uint32_t CommonPrefix(Tokens a, Tokens b) {
  const size_t limit = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < limit && a[i] == b[i]) ++i;
  return static_cast<uint32_t>(i);
}

// Sets of cuts under which the same tokens may be stored side by side; more are not followed when
// counting matched tokens, which is advice to the caller and never decides what is served.
constexpr int kMaxCutVariants = 8;

}  // namespace

bool SegmentNode::ByTokens::operator()(const SegmentNode* a, const SegmentNode* b) const {
  if (a->token_ids != b->token_ids) return Less(a->token_ids, b->token_ids);
  return Less(a->cut_offsets, b->cut_offsets);
}
bool SegmentNode::ByTokens::operator()(const SegmentNode* a, Tokens b) const {
  return Less(a->token_ids, b);
}
bool SegmentNode::ByTokens::operator()(Tokens a, const SegmentNode* b) const {
  return Less(a, b->token_ids);
}

bool SegmentNode::Is(const KeyedSegment& segment, Tokens prompt) const {
  return begin == segment.segment.begin &&
         Tokens(token_ids) == prompt.subspan(begin, segment.segment.tokens) &&
         segment.HasCutOffsets(cut_offsets);
}

SegmentNode* PrefixIndex::Find(const Digest& key) const {
  ++finds_;
  const auto it = nodes_.find(key);
  return it == nodes_.end() ? nullptr : it->second.get();
}

SegmentNode* PrefixIndex::Find(const KeyedSegment& segment, Tokens prompt) const {
  SegmentNode* node = Find(segment.key);
  return node != nullptr && node->Is(segment, prompt) ? node : nullptr;
}

SegmentNode* PrefixIndex::EnsureRoot(const Digest& root) {
  std::unique_ptr<SegmentNode>& node = nodes_[root];
  if (node == nullptr) {
    node = std::make_unique<SegmentNode>();
    node->key = root;
  }
  assert(node->parent == nullptr);
  return node.get();
}

SegmentNode* PrefixIndex::Ensure(SegmentNode* parent, const KeyedSegment& segment, Tokens prompt) {
  assert(parent != nullptr && parent->end() == segment.segment.begin);
  if (SegmentNode* found = Find(segment.key); found != nullptr) {
    return found->parent == parent ? Find(segment, prompt) : nullptr;
  }
  auto node = std::make_unique<SegmentNode>();
  node->key = segment.key;
  node->parent = parent;
  node->begin = segment.segment.begin;
  const Tokens tokens = prompt.subspan(segment.segment.begin, segment.segment.tokens);
  node->token_ids.assign(tokens.begin(), tokens.end());
  node->cut_offsets = segment.CutOffsets();
  SegmentNode* raw = node.get();
  if (!parent->children.insert(raw).second) return nullptr;
  nodes_[segment.key] = std::move(node);
  return raw;
}

void PrefixIndex::Prune(SegmentNode* node) {
  while (node != nullptr && node->children.empty() && node->restore_point == nullptr &&
         node->objects[0] == nullptr && node->objects[1] == nullptr) {
    SegmentNode* parent = node->parent;
    if (parent != nullptr) parent->children.erase(node);
    const Digest key = node->key;  // a copy: the node owns the original
    nodes_.erase(key);
    node = parent;
  }
}

std::vector<SegmentNode*> PrefixIndex::RemaindersOf(const SegmentNode* chunk, Tokens rest,
                                                    uint32_t chunk_tokens) {
  std::vector<SegmentNode*> found;
  Tokens probe = rest.subspan(0, std::min<size_t>(rest.size(), chunk_tokens - 1));
  while (!probe.empty()) {
    // The last child at or before `probe`: a prefix of it, or a bound on how long one can be.
    auto it = chunk->children.upper_bound(probe);
    if (it == chunk->children.begin()) break;
    SegmentNode* candidate = *std::prev(it);
    const uint32_t common = CommonPrefix(candidate->token_ids, probe);
    if (common == candidate->token_ids.size()) {
      found.push_back(candidate);
      probe = probe.subspan(0, common - 1);
    } else {
      probe = probe.subspan(0, common);
    }
  }
  return found;
}

PromptMatch MatchPrompt(const PrefixIndex& index, const Digest& root, Tokens prompt,
                        uint32_t chunk_tokens) {
  PromptMatch match;
  const auto consider = [&](const SegmentNode* node) {
    if (node->restore_point == nullptr || node->end() >= prompt.size()) return;
    if (match.point == nullptr || node->end() > match.point->end()) match.point = node;
  };
  std::vector<const SegmentNode*> level, next;  // ends of the same tokens under different cuts
  if (const SegmentNode* node = index.Find(root); node != nullptr) level.push_back(node);
  match.has_root = !level.empty();
  for (; !level.empty(); level.swap(next)) {
    next.clear();
    for (const SegmentNode* node : level) {
      match.tokens = std::max(match.tokens, node->end());
      consider(node);
      if (node->end() >= prompt.size()) continue;
      const Tokens rest = prompt.subspan(node->end());
      const Tokens chunk = rest.subspan(0, std::min<size_t>(rest.size(), chunk_tokens));
      // Neighbours of the place where `chunk` would be inserted share the most with it.
      auto it = node->children.lower_bound(chunk);
      if (it != node->children.begin()) {
        const uint32_t common = CommonPrefix((*std::prev(it))->token_ids, chunk);
        match.tokens = std::max(match.tokens, node->end() + common);
      }
      if (it != node->children.end()) {
        const uint32_t common = CommonPrefix((*it)->token_ids, chunk);
        match.tokens = std::max(match.tokens, node->end() + common);
      }
      for (const SegmentNode* end : PrefixIndex::RemaindersOf(node, rest, chunk_tokens)) {
        consider(end);
      }
      for (; it != node->children.end() && next.size() < kMaxCutVariants; ++it) {
        if (chunk.size() < chunk_tokens || Tokens((*it)->token_ids) != chunk) break;
        next.push_back(*it);
      }
    }
  }
  match.tokens = std::min<uint32_t>(match.tokens, static_cast<uint32_t>(prompt.size()));
  return match;
}

}  // namespace hearth
