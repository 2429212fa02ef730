// PromptWalk: walks along a prompt once and reports at which boundaries generation could resume.
//
// The walk tracks whether all global objects so far are readable, from which token on the local
// objects have no gap, and the sums of both. A boundary is usable if the global objects are
// readable and the local objects cover its window, even if no manifest was written for it. Nothing
// may change the index during the walk.
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
  SegmentNode* node = nullptr;  // the segment that ends here; null if not stored
  bool globals_present = false;
  bool tail_present = false;
  // For a usable boundary: its objects' bytes, their slowest tier, and their earliest expiry.
  uint64_t bytes = 0;
  Tier tier = Tier::kHost;
  absl::Time until;
  bool usable() const { return globals_present && tail_present; }
};

class PromptWalk {
 public:
  using OnDevice = std::function<bool(StoredObject*)>;  // null: no device

  // Borrows all arguments except `on_device`. Pinned objects count as alive for a while after
  // `now`.
  PromptWalk(const PrefixIndex* index, const KvLayout* layout, const PromptChain* chain,
             absl::Span<const uint32_t> token_ids, uint32_t max_boundary, absl::Time now,
             OnDevice on_device = nullptr);

  // Sets `states` to the candidate boundaries of the next chunk, ascending: remainders of the chain
  // (in the portable class all stored remainders), then the chunk's end. Returns false at the end.
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
  // Removes local objects that no boundary from `end` on needs.
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

  uint32_t begin_ = 0;                         // of the next chunk
  size_t remainder_ = 0;                       // index of the chain's next remainder
  SegmentNode* parent_;                        // ends at begin_
  bool globals_ = true;                        // all global objects up to begin_ are present
  uint32_t local_run_begin_ = 0;               // local objects are present from here to begin_
  Sums global_sums_, local_sums_;              // of global objects before begin_; of tail_
  absl::Time until_ = absl::InfiniteFuture();  // earliest expiry of the global objects
  std::deque<Local> tail_;
  std::deque<Local> earliest_;  // entries of tail_ that expire before all later entries
};

// Returns the objects of the boundary at the end of `last`, in NeededObjects order; empty if one is
// missing.
std::vector<StoredObject*> ObjectsOf(const KvLayout& layout, SegmentNode* last);

// Returns the tokens of [0, last->end()), and the cuts that the keys prove, without multiples of C.
std::vector<uint32_t> TokensOf(const SegmentNode* last);
std::vector<uint32_t> CutsOf(const SegmentNode* last, const KvLayout& layout);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_
