// PrefixFinder: finds the longest restore point of a prompt: among its tenant's prefixes, and then,
// where callers may read one, in a public namespace.
//
// Thread safe. Ownership: borrows the rest.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PREFIX_FINDER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PREFIX_FINDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/background/index_loader.h"
#include "cache_store/store/background/upkeep.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class PrefixFinder {
 public:
  struct Namespace {  // that a prompt is looked for in
    std::string tenant;
    std::shared_ptr<const KnownFingerprint> model;
    PromptChain chain;  // to the highest boundary that is of use
  };
  struct Found {
    bool is_known = false;  // something of this fingerprint is stored
    uint32_t matched_tokens = 0;
    const Namespace* space = nullptr;
    Digest key{};           // of the segment that ends the longest restore point
    uint32_t boundary = 0;  // 0: none
  };

  PrefixFinder(StoreCore* core, IndexLoader* loader, Upkeep* upkeep)
      : core_(core), state_(&core->state), loader_(loader), upkeep_(upkeep) {}

  // The tenant's own first; all that the prompt may find there is loaded. Empty when none of them
  // ever saw this fingerprint. kCancelled by the query's `stopped`.
  absl::StatusOr<std::vector<Namespace>> NamespacesOf(const PrefixQuery& query, uint32_t highest)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  // Others have the lock in between where a prompt has many chunks. What was found is there when
  // this returns. Finds nothing once the query's `stopped` says so.
  Found Search(const PrefixQuery& query, const Namespace& space, uint32_t highest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // False for a boundary that is there only because something expired is still held.
  bool IsUsable(const BoundaryState& state, const KvLayout& layout, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // Walks `match` to its end, as Search walks.
  void Match(const PrefixQuery& query, PromptMatch* match)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

 private:
  StoreCore* const core_;
  StoreState* const state_;
  IndexLoader* const loader_;
  Upkeep* const upkeep_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PREFIX_FINDER_H_
