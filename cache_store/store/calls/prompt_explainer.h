// PromptExplainer: explains the result of a lookup: for each boundary of the prompt, what is
// stored, or why the boundary cannot be used.
//
// Thread safe. Ownership: borrows the objects that its constructor gets.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/store/calls/fetcher.h"
#include "cache_store/store/store_core.h"

namespace hearth {

// Returns a text about a removal, such as "evicted 12s ago: the disk was full (disk_bytes 64 GiB)".
std::string RemovalText(Removal removal, absl::Duration ago, const Evictor::Limits& limits);

class PromptExplainer {
 public:
  PromptExplainer(StoreCore* core, const Fetcher* finder) : core_(core), finder_(finder) {}

  // Implements StoreReader::Explain.
  absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) ABSL_LOCKS_EXCLUDED(core_->mu);

 private:
  using Namespace = Fetcher::Namespace;

  ExplainReport ExplainIn(const Namespace& space, const PrefixQuery& query);
  void AddPublic(const ExplainReport& theirs, const PrefixQuery& query, ExplainReport* report);
  void ExplainCuts(const Namespace& space, const PrefixQuery& query, ExplainReport* report);
  void ExplainOthers(const PrefixQuery& query, const KnownFingerprint* asked,
                     ExplainReport* report);
  // Sets the matching tokens and the boundaries of the report.
  void Walk(const Namespace& space, const PrefixQuery& query, ExplainReport* report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  const Fetcher* const finder_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PROMPT_EXPLAINER_H_
