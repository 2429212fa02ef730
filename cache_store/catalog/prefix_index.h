// PrefixIndex: the tree of stored segments, by which the store knows prompts token by token.
//
// One root for each (fingerprint, tenant); a node is one segment, named by its key in the hash
// chain. Nodes keep their token ids, and every hit compares them: a key is never trusted alone.
// Not thread safe: the store guards it. Nodes are owned by the index and never move.
// Invariants: 1. a node other than a root has an object, a restore point, or children.
// 2. only whole chunks have children. 3. siblings differ in tokens or in cut offsets.
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
  // Orders siblings so that the longest common prefix is found beside the place of insertion.
  struct ByTokens {
    using is_transparent = void;
    bool operator()(const SegmentNode* a, const SegmentNode* b) const;
    bool operator()(const SegmentNode* a, absl::Span<const uint32_t> b) const;
    bool operator()(absl::Span<const uint32_t> a, const SegmentNode* b) const;
  };

  using Children = absl::btree_set<SegmentNode*, ByTokens>;

  // A root.
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
  // False: a sibling has the same tokens and cuts.
  bool AddChild(SegmentNode* child);
  void RemoveChild(SegmentNode* child);
  // It has the segment's tokens and cuts, whatever is before them.
  bool Is(const KeyedSegment& segment, absl::Span<const uint32_t> prompt) const;

 private:
  std::unique_ptr<Children> children_;   // null: none
  std::unique_ptr<uint32_t[]> numbers_;  // the token ids, then the cut offsets
  uint32_t begin_ = 0;
  uint16_t tokens_ = 0, cuts_ = 0;  // at most kMaxChunkTokens each
};

// The first 128 bits of a key: keys are of a keyed hash, and do not agree in them by chance.
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
  // RAM of a node with its token ids and cut offsets and its places among its siblings and in the
  // table (memory_cost.h).
  static uint64_t NodeCostBytes(size_t tokens, size_t cuts);

  // Null when absent.
  SegmentNode* Find(const Digest& key) const;
  // Like Find, but not counted in finds(): for a caller that looked the key up before.
  SegmentNode* Peek(const Digest& key) const;
  SegmentNode* Peek(const ShortKey& key) const;
  // The node of `segment` if it is stored with exactly these tokens.
  SegmentNode* Find(const KeyedSegment& segment, absl::Span<const uint32_t> prompt) const;
  SegmentNode* EnsureRoot(const Digest& root);
  // Null when a node of this key exists with other tokens: a collision, or a broken caller.
  SegmentNode* Ensure(SegmentNode* parent, const KeyedSegment& segment,
                      absl::Span<const uint32_t> prompt);
  // Removes `node` and then its ancestors, up to the first that something needs.
  void Prune(SegmentNode* node);

  // Children of `chunk` shorter than C that are prefixes of `rest`, longest first.
  static std::vector<SegmentNode*> RemaindersOf(const SegmentNode* chunk,
                                                absl::Span<const uint32_t> rest,
                                                uint32_t chunk_tokens);

  size_t size() const { return nodes_.size(); }
  // RAM of all nodes, by NodeCostBytes.
  uint64_t cost_bytes() const { return cost_bytes_; }
  // Keys looked up since the start, found or not: a measure of the work done here.
  uint64_t finds() const { return finds_; }

 private:
  // By the nodes' own keys, which are hashes already.
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

// How far a prompt goes along what is stored below a root, whatever its cuts.
struct PromptMatch {
  bool has_root = false;
  uint32_t tokens = 0;  // the longest common token prefix
  // Ends the deepest restore point whose tokens begin the prompt, and which leaves a token to
  // compute. Null when there is none.
  const SegmentNode* point = nullptr;
};
PromptMatch MatchPrompt(const PrefixIndex& index, const Digest& root,
                        absl::Span<const uint32_t> prompt, uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_PREFIX_INDEX_H_
