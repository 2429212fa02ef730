// PromptExplainer: explains a lookup: for each boundary what is stored, or why it cannot be used.
//
// Thread safe. Ownership: borrows the rest.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/catalog/history.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/calls/fetcher.h"
#include "cache_store/store/store_core.h"

namespace hearth {

// Says why a boundary of a prompt cannot be used, in words and as a code: looks at the place where
// the prompt's chain breaks, and at the history of the missing segments. Made for one walk along a
// prompt, under the store's lock, and used there. Borrows everything.
class MissExplainer {
 public:
  // `matched_tokens`: common with anything the tenant stored.
  MissExplainer(StoreCore* core, const KvLayout& layout, const PromptChain& chain,
                uint32_t matched_tokens, absl::Time now)
      : core_(core), layout_(layout), chain_(chain), matched_tokens_(matched_tokens), now_(now) {}

  // Learns of the next boundary of a walk, and where it cannot be used fills miss, removed,
  // removed_ago and reason; but of kNeverStored and kOtherCuts no reason.
  void Explain(const BoundaryState& state, BoundaryReport* report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  struct Gone {
    uint32_t end = 0;
    Departure departure;
  };

  StoreCore* const core_;
  const KvLayout& layout_;
  const PromptChain& chain_;
  const uint32_t matched_tokens_;
  const absl::Time now_;
  bool lacks_globals_ = false;
  bool has_hidden_ = false;                     // among the objects so far
  std::optional<Departure> globals_departure_;  // of the first chunk that lacks its global object
  // Missing local objects of the tail, those after which none left later.
  std::deque<Gone> tail_;
};

// "evicted 12s ago: the disk was full (disk_bytes 64 GiB)".
std::string RemovalText(Removal removal, absl::Duration ago, const StoreOptions& options);

class PromptExplainer {
 public:
  PromptExplainer(StoreCore* core, const Fetcher* finder) : core_(core), finder_(finder) {}

  // TieredStore::Explain.
  absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) ABSL_LOCKS_EXCLUDED(core_->mu);

 private:
  ExplainReport ExplainOwn(const PrefixQuery& query);
  void AddPublic(const ExplainReport& theirs, const PrefixQuery& query, ExplainReport* report);
  void ExplainCuts(const PrefixQuery& query, const KnownFingerprint& model, ExplainReport* report);
  void ExplainOthers(const PrefixQuery& query, const KnownFingerprint* asked,
                     ExplainReport* report);
  void SayCommonReasons(const std::string& tenant, const KvLayout& layout, ExplainReport* report);
  // Fills in the tokens that match, and the boundaries.
  void WalkOwn(const PrefixQuery& query, const KvLayout& layout, const PromptChain& chain,
               ExplainReport* report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  BoundaryReport ReportOn(const BoundaryState& state, absl::Time now, MissExplainer* misses)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  const Fetcher* const finder_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_
