// MissExplainer: says why a boundary of a prompt cannot be used, in words and as a code.
//
// Looks at the index, at the place where the prompt's chain breaks, and at the history of the
// missing segments. Made for one prompt, under the store's lock, and used there.
// Ownership: borrows everything.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_MISS_EXPLAINER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_MISS_EXPLAINER_H_

#include <string>

#include "absl/types/span.h"
#include "cache_store/catalog/history.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/options.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

class MissExplainer {
 public:
  struct Prompt {
    const PrefixIndex* index;
    const History* history;
    const KvLayout* layout;
    const PromptChain* chain;
    absl::Span<const uint32_t> token_ids;
    uint32_t matched_tokens;  // common with anything the tenant stored
    absl::Time now;
    const StoreOptions* options;  // limits, for the words
  };
  explicit MissExplainer(const Prompt& prompt);

  // Fills miss, removed, removed_ago and reason. REQUIRES: `state` is not usable.
  void Explain(const BoundaryState& state, BoundaryReport* report) const;

 private:
  bool Lacks(const KeyedSegment& segment, LayerGroup group) const;
  const Departure* TailDeparture(uint32_t boundary) const;

  const Prompt prompt_;
  const Departure* globals_departure_ = nullptr;  // of the first chunk that lacks its global object
};

// "evicted 12s ago: the disk was full (disk_bytes 64 GiB)".
std::string RemovalText(Removal removal, absl::Duration ago, const StoreOptions& options);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_MISS_EXPLAINER_H_
