#include "cache_store/store/calls/prefix_finder.h"

#include <deque>
#include <utility>

#include "proto/caller_gone.h"
#include "proto/prefix_key.h"

namespace hearth {
namespace {

constexpr size_t kMaxUsableKept = 16;
// A boundary without a restore point of its own gets one under one hold of the lock, within a few
// milliseconds: up to 131,072 tokens in the smallest chunks.
constexpr uint32_t kMaxChunksOfNew = 8192;

}  // namespace

absl::StatusOr<std::vector<PrefixFinder::Namespace>> PrefixFinder::NamespacesOf(
    const PrefixQuery& query, uint32_t highest) {
  upkeep_->ExpireFew();
  std::vector<Namespace> spaces;
  for (const std::string* tenant : {&query.tenant, &query.public_tenant}) {
    if (tenant->empty() || (tenant != &query.tenant && *tenant == query.tenant)) continue;
    Namespace space;
    space.tenant = *tenant;
    {
      StateLock lock(state_);
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

void PrefixFinder::Match(const PrefixQuery& query, PromptMatch* match) {
  state_->mu.AssertHeld();
  while (match->Next()) {
    if (!state_->Yield(1)) continue;
    if (query.stopped && query.stopped()) return;
    match->Resume();
  }
}

PrefixFinder::Found PrefixFinder::Search(const PrefixQuery& query, const Namespace& space,
                                         uint32_t highest) {
  state_->mu.AssertHeld();
  Found found;
  const PrefixIndex& index = state_->catalog.index();
  const KvLayout& layout = space.model->layout;
  PromptMatch match(&index, space.chain.root, query.token_ids, layout.chunk_tokens);
  found.is_known = match.has_root();
  Match(query, &match);
  found.matched_tokens = match.tokens();
  const absl::Time now = core_->clock->Now();
  PromptWalk walk(&index, &layout, &space.chain, query.token_ids, highest, now);
  std::deque<std::pair<Digest, uint32_t>> usable;  // the longest ones, by key and boundary
  std::vector<BoundaryState> states;
  while (found.matched_tokens > 0 && walk.Next(&states)) {
    for (const BoundaryState& state : states) {
      if (!IsUsable(state, layout, now)) continue;
      usable.emplace_back(state.node->key, state.boundary);
      if (usable.size() > kMaxUsableKept) usable.pop_front();
    }
    if (!state_->Yield(states.size())) continue;
    if (query.stopped && query.stopped()) return found;
    walk.Resume();
  }
  for (; !usable.empty(); usable.pop_back()) {
    const auto& [key, boundary] = usable.back();
    SegmentNode* node = index.Find(key);
    if (node == nullptr) continue;
    // What was seen under an earlier hold of the lock may be gone.
    if (node->restore_point == nullptr) {
      const std::vector<const StoredObject*> objects = ObjectsOf(layout, node);
      if (objects.empty() || InheritedExpiry(objects, now) <= now) continue;
    }
    found.space = &space;
    found.key = key;
    found.boundary = boundary;
    return found;
  }
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
  if (state.boundary > kMaxChunksOfNew * layout.chunk_tokens) return false;
  // Its own pin and end are on disk and will be loaded.
  if (loader_->unloaded() != nullptr && loader_->unloaded()->IsPendingAt(state.node->key)) {
    return false;
  }
  // Objects may outlive all restore points that named them: a session, or the loader, holds them.
  return state.until > now;
}

}  // namespace hearth
