#include "cache_store/catalog/prefix_index.h"

#include <algorithm>
#include <cassert>

#include "cache_store/base/memory_cost.h"

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

// Limit of nodes with equal tokens but different prefill cuts that a match follows. Ignoring the
// others is safe: the number of matched tokens is only advice to the caller.
constexpr int kMaxCutVariants = 8;

}  // namespace

bool SegmentNode::ByTokens::operator()(const SegmentNode* a, const SegmentNode* b) const {
  if (a->token_ids() != b->token_ids()) return Less(a->token_ids(), b->token_ids());
  return Less(a->cut_offsets(), b->cut_offsets());
}
bool SegmentNode::ByTokens::operator()(const SegmentNode* a, Tokens b) const {
  return Less(a->token_ids(), b);
}
bool SegmentNode::ByTokens::operator()(Tokens a, const SegmentNode* b) const {
  return Less(a, b->token_ids());
}

SegmentNode::SegmentNode(SegmentNode* before, const KeyedSegment& segment, Tokens prompt)
    : key(segment.key), parent(before), begin_(segment.segment.begin) {
  assert(segment.segment.tokens <= kMaxChunkTokens);
  const Tokens tokens = prompt.subspan(segment.segment.begin, segment.segment.tokens);
  const std::vector<uint32_t> cuts = segment.CutOffsets();
  assert(cuts.size() <= tokens.size());
  tokens_ = static_cast<uint16_t>(tokens.size());
  cuts_ = static_cast<uint16_t>(cuts.size());
  numbers_ = std::make_unique<uint32_t[]>(tokens.size() + cuts.size());
  std::copy(tokens.begin(), tokens.end(), numbers_.get());
  std::copy(cuts.begin(), cuts.end(), numbers_.get() + tokens.size());
}

const SegmentNode::Children& SegmentNode::children() const {
  static const Children* const none = new Children();
  return children_ == nullptr ? *none : *children_;
}

bool SegmentNode::AddChild(SegmentNode* child) {
  if (children_ == nullptr) children_ = std::make_unique<Children>();
  return children_->insert(child).second;
}

void SegmentNode::RemoveChild(SegmentNode* child) {
  children_->erase(child);
  if (children_->empty()) children_ = nullptr;
}

bool SegmentNode::Is(const KeyedSegment& segment, Tokens prompt) const {
  return begin_ == segment.segment.begin &&
         token_ids() == prompt.subspan(begin_, segment.segment.tokens) &&
         segment.HasCutOffsets(cut_offsets());
}

// The sum of: the node, its slot in a half-full tree of siblings, and its slot in the hash table.
uint64_t PrefixIndex::NodeCostBytes(size_t tokens, size_t cuts) {
  uint64_t bytes = BlockBytes(sizeof(SegmentNode)) + SlotBytes(sizeof(void*)) + 2 * sizeof(void*);
  if (tokens + cuts > 0) bytes += BlockBytes((tokens + cuts) * sizeof(uint32_t));
  return bytes;
}

SegmentNode* PrefixIndex::Find(const Digest& key) const {
  ++finds_;
  return Peek(key);
}

SegmentNode* PrefixIndex::Peek(const Digest& key) const {
  const auto it = nodes_.find(key);
  return it == nodes_.end() ? nullptr : it->get();
}

SegmentNode* PrefixIndex::Peek(const ShortKey& key) const {
  const auto it = nodes_.find(key);
  return it == nodes_.end() ? nullptr : it->get();
}

SegmentNode* PrefixIndex::Find(const KeyedSegment& segment, Tokens prompt) const {
  SegmentNode* node = Find(segment.key);
  return node != nullptr && node->Is(segment, prompt) ? node : nullptr;
}

SegmentNode* PrefixIndex::EnsureRoot(const Digest& root) {
  SegmentNode* node = Peek(root);
  if (node == nullptr) {
    node = nodes_.insert(std::make_unique<SegmentNode>(root)).first->get();
    cost_bytes_ += NodeCostBytes(0, 0);
  }
  assert(node->parent == nullptr);
  return node;
}

SegmentNode* PrefixIndex::Ensure(SegmentNode* parent, const KeyedSegment& segment, Tokens prompt) {
  assert(parent != nullptr && parent->end() == segment.segment.begin);
  if (SegmentNode* found = Find(segment.key); found != nullptr) {
    return found->parent == parent ? Find(segment, prompt) : nullptr;
  }
  auto node = std::make_unique<SegmentNode>(parent, segment, prompt);
  SegmentNode* raw = node.get();
  if (!parent->AddChild(raw)) return nullptr;
  cost_bytes_ += NodeCostBytes(raw->token_ids().size(), raw->cut_offsets().size());
  nodes_.insert(std::move(node));
  return raw;
}

void PrefixIndex::Prune(SegmentNode* node) {
  while (node != nullptr && node->children().empty() && node->restore_point == nullptr &&
         node->objects[0] == nullptr && node->objects[1] == nullptr) {
    SegmentNode* parent = node->parent;
    if (parent != nullptr) parent->RemoveChild(node);
    cost_bytes_ -= NodeCostBytes(node->token_ids().size(), node->cut_offsets().size());
    nodes_.erase(nodes_.find(node->key));
    node = parent;
  }
}

std::vector<SegmentNode*> PrefixIndex::RemaindersOf(const SegmentNode* chunk, Tokens rest,
                                                    uint32_t chunk_tokens) {
  std::vector<SegmentNode*> found;
  Tokens probe = rest.subspan(0, std::min<size_t>(rest.size(), chunk_tokens - 1));
  while (!probe.empty()) {
    // The last child not after `probe` is a prefix of `probe`, or its common prefix with `probe`
    // limits the length of such a prefix.
    auto it = chunk->children().upper_bound(probe);
    if (it == chunk->children().begin()) break;
    SegmentNode* candidate = *std::prev(it);
    const uint32_t common = CommonPrefix(candidate->token_ids(), probe);
    if (common == candidate->token_ids().size()) {
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
  std::vector<const SegmentNode*> level, next;  // nodes with equal tokens but different cuts
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
      // The children next to the position at which `chunk` would be inserted have the longest
      // common prefix with `chunk`.
      const SegmentNode::Children& children = node->children();
      auto it = children.lower_bound(chunk);
      if (it != children.begin()) {
        const uint32_t common = CommonPrefix((*std::prev(it))->token_ids(), chunk);
        match.tokens = std::max(match.tokens, node->end() + common);
      }
      if (it != children.end()) {
        const uint32_t common = CommonPrefix((*it)->token_ids(), chunk);
        match.tokens = std::max(match.tokens, node->end() + common);
      }
      for (const SegmentNode* end : PrefixIndex::RemaindersOf(node, rest, chunk_tokens)) {
        consider(end);
      }
      for (; it != children.end() && next.size() < kMaxCutVariants; ++it) {
        if (chunk.size() < chunk_tokens || (*it)->token_ids() != chunk) break;
        next.push_back(*it);
      }
    }
  }
  match.tokens = std::min<uint32_t>(match.tokens, static_cast<uint32_t>(prompt.size()));
  return match;
}

}  // namespace hearth
