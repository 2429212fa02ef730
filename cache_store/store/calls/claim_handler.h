// ClaimHandler: decides which caller computes a prefix, which callers wait for it, and when a wait
// ends.
//
// The rule: a caller that lacks at least min_tokens waits for the longest usable boundary that
// another caller has promised to publish. If there is none, it promises the boundaries that it will
// keep itself. To choose these boundaries, prompts being computed count as stored: if two prompts
// branch, the second keeps a tail at the branch, and a third waits for that tail.
//
// Thread safe; wakes are called without holding a lock. Ownership: borrows its collaborators.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_CLAIM_HANDLER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_CLAIM_HANDLER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/catalog/compute_claims.h"
#include "cache_store/store/calls/fetcher.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class ClaimHandler {
 public:
  ClaimHandler(StoreCore* core, const Fetcher* finder) : core_(core), finder_(finder) {}

  // Implements StorePublisher::Claim.
  absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask)
      ABSL_LOCKS_EXCLUDED(core_->mu);

 private:
  ClaimDecision DecideRole(const PrefixQuery& query, const std::vector<Fetcher::Namespace>& spaces,
                           ClaimRequest ask, ComputeClaims::Wakes* wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Promise(const PrefixQuery& query, const KvLayout& layout, const PromptChain& chain,
               const ClaimRequest& ask, absl::Time now, ClaimDecision* turn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns a handle that calls `give_back`, without holding a lock, when its last copy is
  // destroyed.
  static std::shared_ptr<void> Ticket(std::function<void()> give_back);

  StoreCore* const core_;
  const Fetcher* const finder_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_CLAIM_HANDLER_H_
