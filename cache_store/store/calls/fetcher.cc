#include "cache_store/store/calls/fetcher.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "cache_store/catalog/prefix_walk.h"
#include "proto/caller_gone.h"
#include "proto/restore_rule.h"

namespace hearth {

namespace {

constexpr char kUnknownFingerprint[] = "nothing stored for this fingerprint";

}  // namespace

std::unique_ptr<FetchSession> Fetcher::Miss(const PrefixQuery& query, Counter why,
                                            const char* reason, uint32_t matched_tokens) {
  if (!query.again) core_->Count(why);
  return std::make_unique<FetchSessionImpl>(parts_, reason,
                                            std::max(matched_tokens, query.known_tokens));
}

absl::StatusOr<std::unique_ptr<FetchSession>> Fetcher::Fetch(const PrefixQuery& query,
                                                             uint32_t above_tokens,
                                                             uint32_t max_tokens) {
  const Stopwatch stopwatch;
  auto session = Lookup(query, above_tokens, max_tokens);
  core_->meters.ObserveLookup(stopwatch.Elapsed());
  return session;
}

absl::StatusOr<std::unique_ptr<FetchSession>> Fetcher::Lookup(const PrefixQuery& query,
                                                              uint32_t above_tokens,
                                                              uint32_t max_tokens) {
  if (absl::Status status = CheckPrefix(query.token_ids, query.cuts); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  core_->Count(query.again ? Counter::kRefetches : Counter::kFetches);
  if (!query.again) core_->Count(Counter::kLookupTokens, tokens);
  const uint32_t highest = max_tokens == 0 ? tokens - 1 : std::min(max_tokens, tokens);
  const absl::StatusOr<std::vector<PrefixFinder::Namespace>> chained =
      finder_->NamespacesOf(query, highest);
  if (!chained.ok()) return chained.status();
  const std::vector<PrefixFinder::Namespace>& spaces = *chained;
  if (spaces.empty()) {
    return Miss(query, Counter::kMissUnknownFingerprint, kUnknownFingerprint, 0);
  }
  std::unique_ptr<FetchSessionImpl> session, dropped;  // they end without the lock
  std::vector<Digest> new_points;
  {
    StoreLock lock(core_);
    PrefixFinder::Found best;
    bool is_known = false;
    for (const PrefixFinder::Namespace& space : spaces) {
      // The tenant's own first: what is as long elsewhere is not looked for.
      if (best.space != nullptr && best.boundary == highest) break;
      if (!query.again) state_->catalog.feed().Request(space.chain, tokens, core_->clock->Now());
      PrefixFinder::Found found = finder_->Search(query, space, highest);
      is_known |= found.is_known || loader_->unloaded() != nullptr;
      const uint32_t matched = std::max(best.matched_tokens, found.matched_tokens);
      if (found.boundary > best.boundary) best = found;
      best.matched_tokens = matched;
    }
    if (!query.again) core_->Count(Counter::kMatchedTokens, best.matched_tokens);
    if (!is_known) {
      return Miss(query, Counter::kMissUnknownFingerprint, kUnknownFingerprint, 0);
    }
    if (best.matched_tokens == 0) {
      return Miss(query, Counter::kMissNoCommonPrefix, "nothing stored begins like this prompt", 0);
    }
    if (query.stopped && query.stopped()) return CallerGone();
    if (best.boundary > above_tokens) {
      // After the search in the first namespace it may be gone.
      SegmentNode* node = state_->catalog.index().Find(best.key);
      if (node != nullptr) session = BeginFetch(*best.space, node, &new_points);
      if (session != nullptr && session->plan().usable_tokens == 0) std::swap(session, dropped);
    }
    if (session == nullptr && best.boundary > 0 && best.boundary <= above_tokens) {
      return Miss(query, Counter::kMissNotAbove, "no restore point above what the caller has",
                  best.matched_tokens);
    }
    if (session == nullptr) {
      return Miss(query, Counter::kMissNoRestorePoint,
                  "no complete restore point in the common prefix", best.matched_tokens);
    }
    session->mutable_plan()->matched_tokens = std::max(best.matched_tokens, query.known_tokens);
    session->mutable_plan()->from_public = best.space->tenant != query.tenant;
    session->SetAgain(query.again);
    session->SetLoadedFrom(query.loaded_from);
    if (!query.again) core_->Count(Counter::kHits);
    if (session->plan().from_public && !query.again) core_->Count(Counter::kPublicHits);
  }
  LookupPlan& plan = *session->mutable_plan();
  if (CutsAreKeyed(plan.layout.exactness)) {
    // The keys prove that these cuts and the stored ones make the same prefill steps.
    const auto end = std::upper_bound(query.cuts.begin(), query.cuts.end(), plan.usable_tokens);
    plan.cuts.assign(query.cuts.begin(), end);
  }
  if (!new_points.empty()) writer_->Schedule(new_points, 0);
  return session;
}

absl::StatusOr<std::unique_ptr<FetchSession>> Fetcher::FetchById(const Digest& id,
                                                                 const std::string& tenant) {
  if (absl::Status status = loader_->LoadPoint(id); !status.ok()) return status;
  std::unique_ptr<FetchSessionImpl> session;
  {
    StateLock lock(state_);
    const RestorePointEntry* point = core_->FindOwned(id, tenant);
    if (point == nullptr) return NoSuchPoint();
    core_->Count(Counter::kExports);
    session = std::make_unique<FetchSessionImpl>(parts_, point);
  }
  if (session->plan().usable_tokens == 0) return NoSuchPoint();
  session->SetExport();
  session->mutable_plan()->matched_tokens = session->plan().usable_tokens;
  return session;
}

std::unique_ptr<FetchSessionImpl> Fetcher::BeginFetch(const PrefixFinder::Namespace& space,
                                                      SegmentNode* node,
                                                      std::vector<Digest>* new_points) {
  state_->mu.AssertHeld();
  const RestorePointEntry* point = node->restore_point;
  if (point == nullptr) {
    point = MakePoint(space, node);
    if (point == nullptr) return nullptr;
    if (core_->tiers.disk != nullptr) new_points->push_back(point->id);
  }
  state_->catalog.Touch(point, core_->clock->Now());
  state_->catalog.CountHit(point);
  auto session = std::make_unique<FetchSessionImpl>(parts_, point);
  const LookupPlan& plan = session->plan();
  if (plan.slowest_tier == Tier::kDisk && !plan.on_device) session->BeginPromotion(*point);
  return session;
}

// Makes a restore point of a boundary that is complete without a manifest of its own. Null when its
// objects that no restore point names any more are over the tenant's quota.
const RestorePointEntry* Fetcher::MakePoint(const PrefixFinder::Namespace& space,
                                            SegmentNode* node) {
  state_->mu.AssertHeld();
  assert(node->restore_point == nullptr);
  std::vector<const StoredObject*> objects = ObjectsOf(space.model->layout, node);
  if (objects.empty()) return nullptr;
  for (const StoredObject* object : objects) state_->objects.Hold(object);
  const RestorePointEntry* point = nullptr;
  if (state_->evictor.Promise(space.tenant, objects)) {
    state_->catalog.feed().BeginPublish(node->end());
    point = state_->catalog.AddRestorePoint(state_->objects.NextNumber(), space.tenant, space.model,
                                            node, objects, CutsOf(node, space.model->layout),
                                            core_->clock->Now());
    state_->objects.Unpromise(objects);
    if (point->slowest_tier() == Tier::kHost) state_->catalog.SetResident(point);
    core_->Count(Counter::kImplicitHits);
    core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
  }
  for (const StoredObject* object : objects) state_->objects.Release(object);
  return point;
}

}  // namespace hearth
