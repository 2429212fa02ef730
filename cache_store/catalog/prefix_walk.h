// PromptWalk: walks along a prompt once and reports at which boundaries (token positions)
// generation could resume.
//
// A boundary is usable if the objects of the global layers cover all tokens before it, and the
// objects of the local (sliding window) layers cover the last window. It is usable even if no
// publish requested a restore point there. REQUIRES: the index does not change during the walk.
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
  SegmentNode* node = nullptr;  // the segment that ends at the boundary; null if not stored
  bool globals_present = false;
  bool tail_present = false;
  // Only for a usable boundary: total bytes of its objects, their slowest tier, and their earliest
  // expiry.
  uint64_t bytes = 0;
  Tier tier = Tier::kHost;
  absl::Time until;
  bool usable() const { return globals_present && tail_present; }
};

class PromptWalk {
 public:
  // tells whether the gpu tier has the object; null: no gpu tier
  using OnDevice = std::function<bool(StoredObject*)>;

  // Borrows all arguments except `on_device`. Objects of pinned restore points count as unexpired
  // for some minutes after `now`.
  PromptWalk(const PrefixIndex* index, const KvLayout* layout, const PromptChain* chain,
             absl::Span<const uint32_t> token_ids, uint32_t max_boundary, absl::Time now,
             OnDevice on_device = nullptr);

  // Sets `states` to the candidate boundaries in the next chunk, ascending: ends of the chain's
  // partial chunks (in the class `portable`: of all stored partial chunks), then the chunk's end.
  // Returns false after the last chunk.
  bool Next(std::vector<BoundaryState>* states);

 private:
  struct Sums {
    uint64_t bytes = 0, cold = 0, off_device = 0;  // all sums are modulo 2^64
    void Add(const Sums& other, uint64_t times);
  };
  struct Local {
    uint32_t end = 0;
    Sums sums;
    absl::Time until;
  };
  Local Count(StoredObject* object, uint32_t end) const;
  // Removes the objects of local layers that are too old for any boundary from `end` on.
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

  uint32_t begin_ = 0;             // position at which the next chunk begins
  size_t remainder_ = 0;           // index of the chain's next partial chunk
  SegmentNode* parent_;            // the node that ends at begin_
  bool globals_ = true;            // whether the objects of global layers are present up to begin_
  uint32_t local_run_begin_ = 0;   // objects of local layers are present from here to begin_
  Sums global_sums_, local_sums_;  // sums over global objects before begin_, and over tail_
  absl::Time until_ = absl::InfiniteFuture();  // earliest expiry of the global objects
  std::deque<Local> tail_;
  std::deque<Local> earliest_;  // the entries of tail_ that expire before all later entries
};

// Returns the objects that a restore at the end of `last` needs, in NeededObjects() order; empty if
// any object is missing.
std::vector<StoredObject*> ObjectsOf(const KvLayout& layout, SegmentNode* last);

// TokensOf: the tokens from the prompt's start to the end of `last`. CutsOf: the prefill cuts in
// their keys, without multiples of chunk_tokens, which change nothing.
std::vector<uint32_t> TokensOf(const SegmentNode* last);
std::vector<uint32_t> CutsOf(const SegmentNode* last, const KvLayout& layout);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_PREFIX_WALK_H_
