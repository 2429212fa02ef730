// PromptExplainer: explains a lookup: for each boundary what is stored, or why it cannot be used.
//
// Thread safe. Ownership: borrows the rest.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/background/index_loader.h"
#include "cache_store/store/background/upkeep.h"
#include "cache_store/store/calls/miss_explainer.h"
#include "cache_store/store/calls/prefix_finder.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class PromptExplainer {
 public:
  PromptExplainer(StoreCore* core, PrefixFinder* finder, IndexLoader* loader, Upkeep* upkeep)
      : core_(core), state_(&core->state), finder_(finder), loader_(loader), upkeep_(upkeep) {}

  // TieredStore::Explain.
  absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) ABSL_LOCKS_EXCLUDED(state_->mu);

 private:
  ExplainReport ExplainOwn(const PrefixQuery& query);
  void AddPublic(const ExplainReport& theirs, const PrefixQuery& query, ExplainReport* report);
  void ExplainCuts(const PrefixQuery& query, const KnownFingerprint& model, ExplainReport* report);
  void ExplainOthers(const PrefixQuery& query, const KnownFingerprint* asked,
                     ExplainReport* report);
  // Fills in the tokens that match, and the boundaries.
  void WalkOwn(const PrefixQuery& query, const KvLayout& layout, const PromptChain& chain,
               ExplainReport* report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  BoundaryReport ReportOn(const BoundaryState& state, const KvLayout& layout, absl::Time now,
                          MissExplainer* misses) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  StoreCore* const core_;
  StoreState* const state_;
  PrefixFinder* const finder_;
  IndexLoader* const loader_;
  Upkeep* const upkeep_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_
