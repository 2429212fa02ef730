// MissExplainer: says why a boundary of a prompt cannot be used, in words and as a code.
//
// Looks at the place where the prompt's chain breaks, and at the history of the missing segments.
// Made for one walk along a prompt, under the store's lock, and used there.
// Ownership: borrows everything.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_MISS_EXPLAINER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_MISS_EXPLAINER_H_

#include <deque>
#include <optional>
#include <string>

#include "cache_store/catalog/history.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/options.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

class MissExplainer {
 public:
  struct Prompt {
    const History* history;
    const KvLayout* layout;
    const PromptChain* chain;
    uint32_t matched_tokens;  // common with anything the tenant stored
    absl::Time now;
    const StoreOptions* options;  // limits, for the words
  };
  explicit MissExplainer(const Prompt& prompt) : prompt_(prompt) {}

  // Learns of the next boundary of a walk, and where it cannot be used fills miss, removed,
  // removed_ago and reason.
  void Explain(const BoundaryState& state, BoundaryReport* report);

 private:
  struct Gone {
    uint32_t end = 0;
    Departure departure;
  };

  const Prompt prompt_;
  bool lacks_globals_ = false;
  std::optional<Departure> globals_departure_;  // of the first chunk that lacks its global object
  // Missing local objects of the tail, those after which none left later.
  std::deque<Gone> tail_;
};

// "evicted 12s ago: the disk was full (disk_bytes 64 GiB)".
std::string RemovalText(Removal removal, absl::Duration ago, const StoreOptions& options);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_MISS_EXPLAINER_H_
