// PrefixIndex: the tree of stored segments; it finds the longest stored prefix of a prompt.
//
// There is one root for each pair of model (fingerprint) and tenant. A node is one segment,
// identified by its hash key. A node also stores its token ids, and each hit compares them, so that
// a hash collision does no harm. Not thread safe: the store's lock guards it. The index owns the
// nodes; nodes never move in memory. Invariants: (1) a node other than a root has an object, a
// restore point, or children; (2) only whole chunks have children; (3) siblings differ in tokens or
// in prefill cuts.
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
  // Orders sibling nodes by tokens, so that the node with the longest common prefix is next to the
  // insertion position.
  struct ByTokens {
    using is_transparent = void;
    bool operator()(const SegmentNode* a, const SegmentNode* b) const;
    bool operator()(const SegmentNode* a, absl::Span<const uint32_t> b) const;
    bool operator()(absl::Span<const uint32_t> a, const SegmentNode* b) const;
  };

  using Children = absl::btree_set<SegmentNode*, ByTokens>;

  // Creates a root node.
  explicit SegmentNode(const Digest& root) : key(root) {}
  SegmentNode(SegmentNode* before, const KeyedSegment& segment, absl::Span<const uint32_t> prompt);

  const Digest key;
  SegmentNode* const parent = nullptr;     // null for a root
  std::array<StoredObject*, 2> objects{};  // objects by LayerGroup: global layers, local layers
  RestorePointEntry* restore_point = nullptr;

  uint32_t begin() const { return begin_; }
  uint32_t end() const { return begin_ + tokens_; }
  absl::Span<const uint32_t> token_ids() const { return {numbers_.get(), tokens_}; }
  absl::Span<const uint32_t> cut_offsets() const { return {numbers_.get() + tokens_, cuts_}; }
  const Children& children() const;
  // Adds a child. Returns false if a child with the same tokens and cuts exists.
  bool AddChild(SegmentNode* child);
  void RemoveChild(SegmentNode* child);
  // Returns whether the node has the segment's tokens and cuts; does not compare the tokens before
  // them.
  bool Is(const KeyedSegment& segment, absl::Span<const uint32_t> prompt) const;

 private:
  std::unique_ptr<Children> children_;   // null: no children
  std::unique_ptr<uint32_t[]> numbers_;  // the node's token ids, then its cut offsets
  uint32_t begin_ = 0;
  uint16_t tokens_ = 0, cuts_ = 0;  // numbers of tokens and of cuts, at most kMaxChunkTokens each
};

// The first 128 bits of a key. Keys come from a keyed hash, so that two different keys practically
// never share these bits.
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
  // Returns the RAM of a node with its token ids, its cuts, and its slots in the tree of siblings
  // and in the hash table (memory_cost.h).
  static uint64_t NodeCostBytes(size_t tokens, size_t cuts);

  // Returns the node of a key; null if absent.
  SegmentNode* Find(const Digest& key) const;
  // Returns the node of a key; null if absent. Not counted in finds(), because the caller has
  // looked up this key before.
  SegmentNode* Peek(const Digest& key) const;
  SegmentNode* Peek(const ShortKey& key) const;
  // Returns the node of `segment` if the node has exactly the tokens of `prompt`; otherwise null.
  SegmentNode* Find(const KeyedSegment& segment, absl::Span<const uint32_t> prompt) const;
  SegmentNode* EnsureRoot(const Digest& root);
  // Returns the node of `segment`, and creates it if absent. Returns null if a node of this key has
  // other tokens: a hash collision, or a faulty caller.
  SegmentNode* Ensure(SegmentNode* parent, const KeyedSegment& segment,
                      absl::Span<const uint32_t> prompt);
  // Removes `node` and its ancestors, up to the first node that has an object, a restore point, or
  // children.
  void Prune(SegmentNode* node);

  // Returns the children of `chunk` that are partial chunks and prefixes of `rest`, longest first.
  static std::vector<SegmentNode*> RemaindersOf(const SegmentNode* chunk,
                                                absl::Span<const uint32_t> rest,
                                                uint32_t chunk_tokens);

  size_t size() const { return nodes_.size(); }
  // Returns the RAM of all nodes, by NodeCostBytes().
  uint64_t cost_bytes() const { return cost_bytes_; }
  // Returns the number of keys looked up since the start, found or not.
  uint64_t finds() const { return finds_; }

 private:
  // Hash function for nodes: their keys are hashes already.
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

// How many tokens of a prompt match the stored prompts below a root, with any prefill cuts.
struct PromptMatch {
  bool has_root = false;
  uint32_t tokens = 0;  // length of the longest common prefix
  // The node of the longest restore point that is a proper prefix of the prompt; null if there is
  // none.
  const SegmentNode* point = nullptr;
};
PromptMatch MatchPrompt(const PrefixIndex& index, const Digest& root,
                        absl::Span<const uint32_t> prompt, uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_PREFIX_INDEX_H_
