// PrefixIndex: the tree of stored segments; it finds prompts token by token.
//
// One root for each (fingerprint, tenant); a node is one segment, named by its key in the hash
// chain. Nodes hold their token ids, and every hit compares them: equal keys alone are never
// trusted. Not thread safe: the store guards it. The index owns the nodes; nodes never move.
// Invariants: (1) a node other than a root has an object, a restore point, or children; (2) only
// whole chunks have children; (3) siblings differ in tokens or in cut offsets.
#ifndef HEARTH_CACHE_STORE_CATALOG_PREFIX_INDEX_H_
#define HEARTH_CACHE_STORE_CATALOG_PREFIX_INDEX_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "proto/fingerprint.h"

namespace hearth {

struct StoredObject;
struct RestorePointEntry;

class SegmentNode {
 public:
  // Orders siblings so that the longest common prefix is next to the place of insertion.
  struct ByTokens {
    using is_transparent = void;
    bool operator()(const SegmentNode* a, const SegmentNode* b) const;
    bool operator()(const SegmentNode* a, absl::Span<const uint32_t> b) const;
    bool operator()(absl::Span<const uint32_t> a, const SegmentNode* b) const;
  };

  using Children = absl::btree_set<SegmentNode*, ByTokens>;

  // Makes a root.
  explicit SegmentNode(const Digest& root) : key(root) {}
  SegmentNode(SegmentNode* before, const KeyedSegment& segment, absl::Span<const uint32_t> prompt);

  const Digest key;
  SegmentNode* const parent = nullptr;     // null: a root
  std::array<StoredObject*, 2> objects{};  // by LayerGroup
  RestorePointEntry* restore_point = nullptr;

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return begin_ + tokens_; }
  absl::Span<const uint32_t> token_ids() const { return {numbers_.get(), tokens_}; }
  absl::Span<const uint32_t> cut_offsets() const { return {numbers_.get() + tokens_, cuts_}; }
  const Children& children() const;
  // Returns false if a sibling has the same tokens and cuts.
  bool AddChild(SegmentNode* child);
  void RemoveChild(SegmentNode* child);
  // Returns whether the node has the segment's tokens and cuts; ignores the tokens before them.
  bool Is(const KeyedSegment& segment, absl::Span<const uint32_t> prompt) const;

 private:
  std::unique_ptr<Children> children_;   // null: none
  std::unique_ptr<uint32_t[]> numbers_;  // the token ids, then the cut offsets
  uint32_t begin_ = 0;
  uint16_t tokens_ = 0, cuts_ = 0;  // at most kMaxChunkTokens each
};

// The first 128 bits of a key. Keys come from a keyed hash, so two keys do not share these bits by
// chance.
struct ShortKey {
  uint64_t first = 0, second = 0;

  static ShortKey Of(const Digest& key) {
    ShortKey parts;
    static_assert(sizeof(parts) <= sizeof(Digest), "");
    std::memcpy(&parts, key.data(), sizeof(parts));
    return parts;
  }
  friend bool operator==(const ShortKey& a, const ShortKey& b) {
    return a.first == b.first && a.second == b.second;
  }
};

class PrefixIndex {
 public:
  // RAM of a node with its token ids, its cut offsets, and its places among the siblings and in the
  // table (memory_cost.h).
  static uint64_t NodeCostBytes(size_t tokens, size_t cuts);

  // Returns null if the key is absent.
  SegmentNode* Find(const Digest& key) const;
  // Like Find, but not counted in finds(): for a caller that looked the key up before.
  SegmentNode* Peek(const Digest& key) const;
  SegmentNode* Peek(const ShortKey& key) const;
  // Returns the node of `segment` if it is stored with exactly these tokens.
  SegmentNode* Find(const KeyedSegment& segment, absl::Span<const uint32_t> prompt) const;
  SegmentNode* EnsureRoot(const Digest& root);
  // Returns null if a node of this key has other tokens: a collision, or a broken caller.
  SegmentNode* Ensure(SegmentNode* parent, const KeyedSegment& segment,
                      absl::Span<const uint32_t> prompt);
  // Removes `node` and its ancestors up to the first node that is needed.
  void Prune(SegmentNode* node);

  // Returns children of `chunk` that are shorter than C and prefixes of `rest`, longest first.
  static std::vector<SegmentNode*> RemaindersOf(const SegmentNode* chunk,
                                                absl::Span<const uint32_t> rest,
                                                uint32_t chunk_tokens);

  size_t size() const { return nodes_.size(); }
  // RAM of all nodes, by NodeCostBytes.
  uint64_t cost_bytes() const { return cost_bytes_; }
  // Number of keys looked up since the start, found or not: a measure of work.
  uint64_t finds() const { return finds_; }

 private:
  // Uses the nodes' keys, which are hashes already.
  struct KeyHash {
    using is_transparent = void;
    size_t operator()(const ShortKey& key) const { return key.first; }
    size_t operator()(const Digest& key) const { return ShortKey::Of(key).first; }
    size_t operator()(const std::unique_ptr<SegmentNode>& node) const { return (*this)(node->key); }
  };
  struct SameKey {
    using is_transparent = void;
    using Node = std::unique_ptr<SegmentNode>;
    bool operator()(const Node& a, const Node& b) const { return a->key == b->key; }
    bool operator()(const Node& a, const Digest& b) const { return a->key == b; }
    bool operator()(const Digest& a, const Node& b) const { return a == b->key; }
    bool operator()(const Node& a, const ShortKey& b) const { return ShortKey::Of(a->key) == b; }
    bool operator()(const ShortKey& a, const Node& b) const { return a == ShortKey::Of(b->key); }
  };

  mutable uint64_t finds_ = 0;
  uint64_t cost_bytes_ = 0;
  absl::flat_hash_set<std::unique_ptr<SegmentNode>, KeyHash, SameKey> nodes_;
};

// How far the stored prompts below a root match a prompt, whatever their cuts.
struct PromptMatch {
  bool has_root = false;
  uint32_t tokens = 0;  // the longest common token prefix
  // The node of the deepest restore point that is a proper prefix of the prompt. Null if there is
  // none.
  const SegmentNode* point = nullptr;
};
PromptMatch MatchPrompt(const PrefixIndex& index, const Digest& root,
                        absl::Span<const uint32_t> prompt, uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_PREFIX_INDEX_H_
