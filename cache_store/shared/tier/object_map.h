// ObjectMap: where the objects of one prompt can be had, and the longest boundary that they make.
//
// Not thread safe. Ownership: borrows the chain, which outlives it.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_OBJECT_MAP_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_OBJECT_MAP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "proto/kv_layout.h"

namespace hearth {

class ObjectMap {
 public:
  enum class Place { kNowhere, kHere, kEngine };  // kHere: in this store, or loaded by this lookup

  // `usable_here`: the longest restore point of the prompt that this store has; its objects are.
  ObjectMap(const KvLayout& layout, const PromptChain& chain, uint32_t usable_here);

  // The objects that a longer boundary may need and this store is not known to have.
  std::vector<ObjectId> ToProbe() const;
  void Set(const ObjectId& id, Place place) { places_[id] = place; }
  Place Of(const ObjectId& id) const {
    const auto it = places_.find(id);
    return it == places_.end() ? Place::kNowhere : it->second;
  }

  // Those of `candidates` (ascending) above `above` all of whose objects are somewhere, ascending.
  // One pass over chunks and candidates, however many there are.
  std::vector<uint32_t> Restorable(absl::Span<const uint32_t> candidates, uint32_t above) const;
  // The last of them. 0: none.
  uint32_t Longest(absl::Span<const uint32_t> candidates, uint32_t above) const;
  // Of the objects that `boundary` needs.
  std::vector<ObjectId> NeededFromEngine(uint32_t boundary) const;
  // Whole chunks from the beginning on whose global objects are somewhere, in tokens.
  uint32_t KnownTokens() const;

 private:
  bool Has(uint32_t begin, uint32_t tokens, LayerGroup group) const {
    return Of({begin, tokens, group}) != Place::kNowhere;
  }
  bool HasChunk(size_t chunk, LayerGroup group) const {
    return Has(static_cast<uint32_t>(chunk) * layout_.chunk_tokens, layout_.chunk_tokens, group);
  }
  // Behind the whole chunks before the boundary.
  bool HasRemainder(uint32_t boundary) const;

  const KvLayout layout_;
  const PromptChain& chain_;
  const uint32_t usable_here_;
  const bool has_local_, has_global_;
  std::map<ObjectId, Place> places_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_OBJECT_MAP_H_
