// ClaimDesk: decides which caller computes a prefix, which ones wait for it, and what ends a wait.
//
// The rule. A caller that lacks at least min_tokens waits for the longest boundary that it could go
// on from and that another has promised to publish; where there is none it promises the boundaries
// that it will keep itself. For that choice prompts under way count as stored: of two that branch
// off, the second keeps a tail at the branch, and the third waits for that.
// Thread safe; wakes are called under no lock. Ownership: borrows the rest.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_CLAIM_DESK_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_CLAIM_DESK_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/catalog/compute_claims.h"
#include "cache_store/store/calls/fetcher.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class ClaimDesk {
 public:
  ClaimDesk(StoreCore* core, const Fetcher* finder) : core_(core), finder_(finder) {}

  // StorePublisher::Claim.
  absl::StatusOr<ClaimDecision> Claim(const PrefixQuery& query, ClaimRequest ask)
      ABSL_LOCKS_EXCLUDED(core_->mu);

 private:
  ClaimDecision TakeTurn(const PrefixQuery& query, const std::vector<Fetcher::Namespace>& spaces,
                         ClaimRequest ask, ComputeClaims::Wakes* wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Promise(const PrefixQuery& query, const KvLayout& layout, const PromptChain& chain,
               const ClaimRequest& ask, absl::Time now, ClaimDecision* turn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Calls `give_back`, under no lock, when the last copy is destroyed.
  static std::shared_ptr<void> Ticket(std::function<void()> give_back);

  StoreCore* const core_;
  const Fetcher* const finder_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_CLAIM_DESK_H_
