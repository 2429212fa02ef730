// ClaimRequest and ClaimDecision: whether a caller that misses should compute or wait, so that each
// prefix is computed once.
//
// Plain values.
#ifndef HEARTH_CACHE_STORE_STORE_CLAIM_H_
#define HEARTH_CACHE_STORE_STORE_CLAIM_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace hearth {

enum class ClaimRole {
  kNone,     // go on: fetch what is usable, compute the rest, promise nothing
  kWait,     // another computes `boundary`: ask again when woken, or at `until`
  kCompute,  // compute and publish by `until`; others wait. May fetch what is usable first
};
struct ClaimRequest {
  uint32_t above_tokens = 0;    // where the caller starts otherwise
  uint32_t max_tokens = 0;      // as Fetch
  uint32_t min_tokens = 0;      // less to gain is not worth a wait or a promise
  absl::Duration compute_time;  // zero: it will not publish
  absl::Time wait_until = absl::InfinitePast();
  uint32_t waited_for = 0;  // the boundary of the wait that ended; 0: the first time
  // Called at most once, under no lock; not after the ticket is gone, except for a call in
  // progress.
  std::function<void()> wake;
};
struct ClaimDecision {
  ClaimRole role = ClaimRole::kNone;
  uint32_t usable_tokens = 0;   // stored by now
  uint32_t boundary = 0;        // kWait: waited for; kCompute: the highest that is promised
  uint32_t matched_tokens = 0;  // as LookupPlan, or of a prompt that another computes
  absl::Time until;
  // Its destruction ends a wait, or a claim, which one of the waiting callers takes over.
  std::shared_ptr<void> ticket;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CLAIM_H_
