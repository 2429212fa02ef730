// One forward walk along a prompt: at which boundaries could generation go on?
//
// The walk tracks two things: whether every global object so far is readable, and from which token
// on the local ones have no gap. A boundary is usable when the first holds and the second covers
// its window, whether a manifest was ever written for it or not. Pure reads of the index.
#ifndef HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_
#define HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "cache_store/catalog/prefix_index.h"

namespace hearth {

struct BoundaryState {
  uint32_t boundary = 0;
  SegmentNode* node = nullptr;  // the segment that ends here; null when it is not stored
  bool globals_present = false;
  bool tail_present = false;
  bool usable() const { return globals_present && tail_present; }
};

// Every candidate boundary in ascending order: the multiples of C that the chain covers, its
// remainders, and in the portable class any stored remainder of the prompt.
std::vector<BoundaryState> WalkPrompt(const PrefixIndex& index, const KvLayout& layout,
                                      const PromptChain& chain,
                                      absl::Span<const uint32_t> token_ids, uint32_t max_boundary);

// Objects of a usable boundary in NeededObjects order, from the segment that ends there. Empty when
// one is missing.
std::vector<const StoredObject*> ObjectsOf(const KvLayout& layout, SegmentNode* last);

// The tokens of [0, last->end()), and the cuts that its keys prove (multiples of C aside).
std::vector<uint32_t> TokensOf(const SegmentNode* last);
std::vector<uint32_t> CutsOf(const SegmentNode* last, const KvLayout& layout);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_
