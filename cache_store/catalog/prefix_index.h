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
#include <memory>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "proto/fingerprint.h"

namespace hearth {

struct StoredObject;
struct RestorePointEntry;

struct SegmentNode {
  // Orders siblings so that the longest common prefix is found beside the place of insertion.
  struct ByTokens {
    using is_transparent = void;
    bool operator()(const SegmentNode* a, const SegmentNode* b) const;
    bool operator()(const SegmentNode* a, absl::Span<const uint32_t> b) const;
    bool operator()(absl::Span<const uint32_t> a, const SegmentNode* b) const;
  };

  Digest key{};
  SegmentNode* parent = nullptr;  // null: a root
  uint32_t begin = 0;
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> cut_offsets;
  std::array<StoredObject*, 2> objects{};  // by LayerGroup
  RestorePointEntry* restore_point = nullptr;
  std::set<SegmentNode*, ByTokens> children;

  uint32_t end() const { return begin + static_cast<uint32_t>(token_ids.size()); }
  // It has the segment's tokens and cuts, whatever is before them.
  bool Is(const KeyedSegment& segment, absl::Span<const uint32_t> prompt) const;
};

class PrefixIndex {
 public:
  // Null when absent.
  SegmentNode* Find(const Digest& key) const;
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
  // Keys looked up since the start, found or not: a measure of the work done here.
  uint64_t finds() const { return finds_; }

 private:
  mutable uint64_t finds_ = 0;
  absl::flat_hash_map<Digest, std::unique_ptr<SegmentNode>> nodes_;
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
