// One forward walk along a prompt: at which boundaries could generation go on?
//
// The walk tracks whether every global object so far is readable, from which token on the local
// ones have no gap, and sums of both. A boundary is usable when the first holds and the second
// covers its window, whether a manifest was ever written for it or not. Nothing changes the index
// during it.
#ifndef HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_
#define HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/catalog/prefix_index.h"

namespace hearth {

struct BoundaryState {
  uint32_t boundary = 0;
  SegmentNode* node = nullptr;  // the segment that ends here; null when it is not stored
  bool globals_present = false;
  bool tail_present = false;
  // Of a usable one: of its objects, the bytes, the slowest tier, and the first end.
  uint64_t bytes = 0;
  Tier tier = Tier::kHost;
  absl::Time until;
  bool usable() const { return globals_present && tail_present; }
};

class PromptWalk {
 public:
  using OnDevice = std::function<bool(StoredObject*)>;  // null: there is no device

  // Borrows all but the last. Pinned objects live on for a while after `now`.
  PromptWalk(const PrefixIndex* index, const KvLayout* layout, const PromptChain* chain,
             absl::Span<const uint32_t> token_ids, uint32_t max_boundary, absl::Time now,
             OnDevice on_device = nullptr);

  // Puts the candidate boundaries of the next chunk there, ascending: remainders of the chain, or
  // in the portable class all that are stored, and the chunk's own end. False: at the end.
  bool Next(std::vector<BoundaryState>* states);

 private:
  struct Sums {
    uint64_t bytes = 0, cold = 0, off_device = 0;  // modulo 2^64
    void Add(const Sums& other, uint64_t times);
  };
  struct Local {
    uint32_t end = 0;
    Sums sums;
    absl::Time until;
  };
  Local Count(StoredObject* object, uint32_t end) const;
  // Forgets local objects that no boundary from `end` on needs.
  void Leave(uint32_t end);
  BoundaryState StateAt(SegmentNode* node, uint32_t end, bool is_chunk);

  const PrefixIndex* const index_;
  const KvLayout* const layout_;
  const PromptChain* const chain_;
  const absl::Span<const uint32_t> token_ids_;
  const uint32_t max_boundary_;
  const absl::Time now_;
  const OnDevice on_device_;
  const bool has_global_, has_local_;

  uint32_t begin_ = 0;             // of the next chunk
  size_t remainder_ = 0;           // the next one of the chain
  SegmentNode* parent_;            // ends at begin_
  bool globals_ = true;            // are present up to begin_
  uint32_t local_run_begin_ = 0;   // local objects are present from here to begin_
  Sums global_sums_, local_sums_;  // of the objects before begin_, and of those in tail_
  absl::Time until_ = absl::InfiniteFuture();  // of the global ones
  std::deque<Local> tail_;
  std::deque<Local> earliest_;  // of tail_, those before which none after them ends
};

// Objects of a usable boundary in NeededObjects order, from the segment that ends there. Empty when
// one is missing.
std::vector<StoredObject*> ObjectsOf(const KvLayout& layout, SegmentNode* last);

// The tokens of [0, last->end()), and the cuts that its keys prove (multiples of C aside).
std::vector<uint32_t> TokensOf(const SegmentNode* last);
std::vector<uint32_t> CutsOf(const SegmentNode* last, const KvLayout& layout);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_
