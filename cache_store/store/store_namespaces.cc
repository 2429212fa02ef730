// Where a prompt is looked for: among its tenant's prefixes, and then, where callers may read one,
// in a namespace that is everybody's.
#include <algorithm>
#include <utility>
#include <vector>

#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/sessions.h"
#include "proto/prefix_key.h"

namespace hearth {

absl::StatusOr<std::vector<Store::Namespace>> Store::NamespacesOf(const PrefixQuery& query,
                                                                  uint32_t highest) {
  ExpireByTheWay();
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
    if (!space.chain.is_whole) return absl::CancelledError("the caller went away");
    spaces.push_back(std::move(space));
  }
  return spaces;
}

Store::Found Store::Search(const PrefixQuery& query, const Namespace& space, uint32_t highest) {
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

}  // namespace hearth
