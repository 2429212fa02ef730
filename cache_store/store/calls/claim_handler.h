// ClaimHandler: decides which of several callers computes a prefix, which callers wait for it, and
// when a wait ends.
//
// The rule: a caller that does not have at least min_tokens waits for the longest useful boundary
// that another caller has promised to publish. If there is none, the caller computes, and promises
// the boundaries that it will publish. When it chooses these boundaries, prompts that others are
// computing count as stored: if two prompts branch, the second caller also publishes the branch
// point, and a third caller waits for it.
//
// Thread safe; wake callbacks are called without holding a lock. Ownership: borrows the objects
// that its constructor gets.
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
  // Returns a handle. When its last copy is destroyed, it calls `give_back` without holding a lock.
  static std::shared_ptr<void> Ticket(std::function<void()> give_back);

  StoreCore* const core_;
  const Fetcher* const finder_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_CLAIM_HANDLER_H_
