#include "cache_store/store/calls/prefix_finder.h"

#include <algorithm>
#include <utility>

#include "proto/caller_gone.h"
#include "proto/prefix_key.h"

namespace hearth {

absl::StatusOr<std::vector<PrefixFinder::Namespace>> PrefixFinder::NamespacesOf(
    const PrefixQuery& query, uint32_t highest) {
  upkeep_->ExpireFew();
  std::vector<Namespace> spaces;
  for (const std::string* tenant : {&query.tenant, &query.public_tenant}) {
    if (tenant->empty() || (tenant != &query.tenant && *tenant == query.tenant)) continue;
    Namespace space;
    space.tenant = *tenant;
    {
      absl::MutexLock lock(&state_->mu);
      space.model = state_->fingerprints.Find(query.fingerprint, *tenant);
    }
    if (space.model == nullptr) continue;
    space.chain = MakeChain(space.model->layout, RootKey(query.fingerprint, *tenant, core_->secret),
                            query.token_ids, query.cuts, highest, query.cuts, query.stopped);
    if (!space.chain.is_whole) return CallerGone();
    loader_->LoadFor(space.chain, space.model->layout);
    spaces.push_back(std::move(space));
  }
  return spaces;
}

PrefixFinder::Found PrefixFinder::Search(const PrefixQuery& query, const Namespace& space,
                                         uint32_t highest) {
  state_->mu.AssertHeld();
  Found found;
  const SegmentNode* root = state_->catalog.index().Find(space.chain.root);
  if (root == nullptr) return found;
  const KvLayout& layout = space.model->layout;
  found.is_known = true;
  found.matched_tokens = PrefixIndex::MatchedTokens(root, query.token_ids, layout.chunk_tokens);
  const std::vector<BoundaryState> states =
      WalkPrompt(state_->catalog.index(), layout, space.chain, query.token_ids, highest);
  const absl::Time now = core_->clock->Now();
  const auto best = std::find_if(states.rbegin(), states.rend(), [&](const BoundaryState& state) {
    state_->mu.AssertHeld();
    return IsUsable(state, layout, now);
  });
  if (best == states.rend()) return found;
  found.space = &space;
  found.node = best->node;
  found.boundary = best->boundary;
  return found;
}

bool PrefixFinder::IsUsable(const BoundaryState& state, const KvLayout& layout,
                            absl::Time now) const {
  if (!state.usable()) return false;
  const bool any_has_expired = state_->catalog.expiry().next() <= now;
  if (const RestorePointEntry* point = state.node->restore_point; point != nullptr) {
    return !any_has_expired || !HasExpired(*point, now);
  }
  if (any_has_expired) return false;
  // Its own pin and end are on disk and will be loaded.
  if (loader_->unloaded() != nullptr && loader_->unloaded()->IsPendingAt(state.node->key)) {
    return false;
  }
  // Objects may outlive all restore points that named them: a session, or the loader, holds them.
  return InheritedExpiry(ObjectsOf(layout, state.node), now) > now;
}

}  // namespace hearth
