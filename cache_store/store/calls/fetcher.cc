#include "cache_store/store/calls/fetcher.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"

namespace hearth {
namespace {

struct MissCause {
  Counter counter;
  const char* text;
};
constexpr MissCause kUnknownFingerprint = {Counter::kMissUnknownFingerprint,
                                           "the tenant stored nothing under this fingerprint"};
constexpr MissCause kNoCommonPrefix = {Counter::kMissNoCommonPrefix,
                                       "no stored prompt begins like this prompt"};
constexpr MissCause kNotAbove = {Counter::kMissNotAbove,
                                 "the caller already has every matching restore point"};
constexpr MissCause kNoRestorePoint = {Counter::kMissNoRestorePoint,
                                       "the prefix that is stored has no complete restore point"};

// Counts the saved computing time. `token_ns` comes from the caller, so it is limited to one second
// per token.
void CountSaved(StoreCore* core, uint64_t tokens, uint64_t token_ns) {
  core->Count(Counter::kSavedUs, tokens * std::min<uint64_t>(token_ns, 1'000'000'000) / 1000);
}

}  // namespace

std::unique_ptr<FetchSession> Fetcher::Miss(const PrefixQuery& query, uint32_t above_tokens,
                                            const Found& found) {
  const MissCause& why = !found.is_known             ? kUnknownFingerprint
                         : found.matched_tokens == 0 ? kNoCommonPrefix
                         : found.boundary > 0        ? kNotAbove
                                                     : kNoRestorePoint;
  if (!query.again) {
    core_->Count(why.counter);
    const uint64_t held = std::min<uint64_t>(above_tokens, query.token_ids.size());
    core_->Count(Counter::kHeldTokens, held);
    CountSaved(core_, held, query.token_ns);
  }
  return std::make_unique<FetchSessionImpl>(core_, why.text,
                                            std::max(found.matched_tokens, query.known_tokens));
}

absl::StatusOr<std::unique_ptr<FetchSession>> Fetcher::Fetch(const PrefixQuery& query,
                                                             uint32_t above_tokens,
                                                             uint32_t max_tokens) {
  const Stopwatch stopwatch;
  const auto observe =
      absl::MakeCleanup([&] { core_->meters.lookups.Observe(stopwatch.Elapsed()); });
  if (absl::Status status = CheckPrefix(query.token_ids, query.cuts); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  core_->Count(query.again ? Counter::kRefetches : Counter::kFetches);
  if (!query.again) core_->Count(Counter::kLookupTokens, tokens);
  const uint32_t highest = max_tokens == 0 ? tokens - 1 : std::min(max_tokens, tokens);
  const absl::StatusOr<std::vector<Namespace>> chained = NamespacesOf(query, highest);
  if (!chained.ok()) return chained.status();
  const std::vector<Namespace>& spaces = *chained;
  if (spaces.empty()) return Miss(query, above_tokens, Found());
  // declared first, so that it is destroyed after the lock is released
  std::unique_ptr<FetchSessionImpl> session;
  std::vector<Digest> new_points;
  {
    StoreLock lock(core_);
    core_->Expire();
    Found best;
    for (const Namespace& space : spaces) {
      // The tenant's own namespace is searched first. If it has the highest boundary, skip the
      // public namespace.
      if (best.space != nullptr && best.boundary == highest) break;
      if (!query.again) core_->catalog.feed().Request(*space.chain, tokens, core_->clock->Now());
      Found found = Search(query, space, highest);
      if (found.boundary > best.boundary) std::swap(best, found);
      best.is_known |= found.is_known;
      best.matched_tokens = std::max(best.matched_tokens, found.matched_tokens);
    }
    if (!query.again) core_->Count(Counter::kMatchedTokens, best.matched_tokens);
    if (best.boundary > above_tokens) {
      session = BeginFetch(query, *best.space, best.node, &new_points);
      if (session == nullptr) best.boundary = 0;
    }
    if (session == nullptr) return Miss(query, above_tokens, best);
    assert(session->plan().usable_tokens == best.boundary && best.boundary <= highest);
    session->mutable_plan()->matched_tokens = std::max(best.matched_tokens, query.known_tokens);
    session->mutable_plan()->from_public = best.space->tenant != query.tenant;
    if (!query.again) core_->Count(Counter::kHits);
    if (session->plan().from_public && !query.again) core_->Count(Counter::kPublicHits);
  }
  LookupPlan& plan = *session->mutable_plan();
  if (CutsAreKeyed(plan.layout.exactness)) {
    // Report the query's cuts: equal keys prove that the stored cuts result in the same prefill
    // steps.
    const auto end = std::upper_bound(query.cuts.begin(), query.cuts.end(), plan.usable_tokens);
    plan.cuts.assign(query.cuts.begin(), end);
  }
  if (!new_points.empty()) writer_->Schedule(new_points, 0);
  return session;
}

LocalStore::Peeked Fetcher::Peek(const PrefixQuery& query, uint32_t max_tokens) const {
  LocalStore::Peeked peeked;
  if (!CheckPrefix(query.token_ids, query.cuts).ok()) return peeked;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const uint32_t highest = max_tokens == 0 ? tokens - 1 : std::min(max_tokens, tokens);
  const absl::StatusOr<std::vector<Namespace>> spaces = NamespacesOf(query, highest);
  if (!spaces.ok()) return peeked;
  StoreLock lock(core_);
  core_->Expire();
  for (const Namespace& space : *spaces) {
    uint32_t& usable = space.tenant == query.tenant ? peeked.own : peeked.of_public;
    usable = Search(query, space, highest).boundary;
    peeked.chains.push_back(space.chain);
  }
  return peeked;
}

absl::StatusOr<std::unique_ptr<FetchSession>> Fetcher::FetchById(const Digest& id,
                                                                 const std::string& tenant) {
  std::unique_ptr<FetchSessionImpl> session;
  {
    StoreLock lock(core_);
    RestorePointEntry* point = core_->FindOwned(id, tenant);
    if (point == nullptr) return NoSuchPoint();
    core_->Count(Counter::kExports);
    session = std::make_unique<FetchSessionImpl>(core_, quarantiner_, promoter_, point,
                                                 FetchSessionImpl::Use{false, true, Tier::kNone});
  }
  session->mutable_plan()->matched_tokens = session->plan().usable_tokens;
  return session;
}

std::unique_ptr<FetchSessionImpl> Fetcher::BeginFetch(const PrefixQuery& query,
                                                      const Namespace& space, SegmentNode* node,
                                                      std::vector<Digest>* new_points) {
  core_->mu.AssertHeld();
  RestorePointEntry* point = node->restore_point;
  if (point == nullptr) {
    point = MakePoint(space, node);
    if (point == nullptr) return nullptr;
    if (core_->tiers.disk != nullptr) new_points->push_back(point->id());
  }
  assert(point->tokens() == node->end() && point->tenant() == space.tenant);
  core_->catalog.Touch(point, core_->clock->Now());
  core_->catalog.CountHit(point);
  return std::make_unique<FetchSessionImpl>(
      core_, quarantiner_, promoter_, point,
      FetchSessionImpl::Use{query.again, false, query.loaded_from, query.token_ns});
}

// Creates a restore point at a boundary whose objects are all stored, although no publish requested
// one. Returns null if RAM has no space for its bookkeeping, or if those of its objects that no
// restore point uses any longer do not fit into the tenant's quota.
RestorePointEntry* Fetcher::MakePoint(const Namespace& space, SegmentNode* node) {
  core_->mu.AssertHeld();
  assert(node->restore_point == nullptr);
  std::vector<StoredObject*> objects = ObjectsOf(space.model->layout, node);
  if (objects.empty()) return nullptr;
  for (StoredObject* object : objects) core_->objects.Hold(object);
  RestorePointEntry* point = nullptr;
  const std::vector<uint32_t> cuts = CutsOf(node, space.model->layout);
  const uint64_t bytes = RestorePointEntry::CostBytes(objects.size(), cuts.size()) +
                         Catalog::SpaceCostBytes(space.tenant.size());
  if (core_->evictor.ReservePoints(bytes, space.tenant)) {
    if (core_->evictor.Promise(space.tenant, objects)) {
      core_->catalog.feed().BeginPublish(node->end());
      point = core_->catalog.AddRestorePoint(core_->objects.NextNumber(), space.tenant, space.model,
                                             node, objects, cuts, core_->clock->Now());
      core_->objects.Unpromise(objects);
    }
    core_->evictor.UnreservePoints(bytes);
  }
  if (point != nullptr) {
    core_->Count(Counter::kImplicitHits);
    core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
  }
  for (StoredObject* object : objects) core_->objects.Release(object);
  return point;
}

absl::StatusOr<std::vector<Fetcher::Namespace>> Fetcher::NamespacesOf(const PrefixQuery& query,
                                                                      uint32_t highest) const {
  std::vector<Namespace> spaces;
  for (const std::string* tenant : {&query.tenant, &query.public_tenant}) {
    if (tenant->empty() || (tenant != &query.tenant && *tenant == query.tenant)) continue;
    auto model = core_->fingerprints.Find(query.fingerprint, *tenant);
    if (model == nullptr) continue;
    ChainPtr chain = ChainOf(query.chains, model->layout, core_->RootOf(query.fingerprint, *tenant),
                             query.token_ids, query.cuts, StoredTokens(highest, model->layout),
                             query.cuts, query.stopped);
    if (!chain->is_whole) return CallerGone();
    spaces.push_back({*tenant, std::move(model), std::move(chain)});
  }
  return spaces;
}

Fetcher::Found Fetcher::Search(const PrefixQuery& query, const Namespace& space,
                               uint32_t highest) const {
  core_->mu.AssertHeld();
  Found found;
  const PrefixIndex& index = core_->catalog.index();
  const KvLayout& layout = space.model->layout;
  const PromptMatch match =
      MatchPrompt(index, space.chain->root, query.token_ids, layout.chunk_tokens);
  found.is_known = match.has_root;
  found.matched_tokens = match.tokens;
  found.space = &space;
  const absl::Time now = core_->clock->Now();
  PromptWalk walk(&index, &layout, space.chain.get(), query.token_ids,
                  std::min(highest, space.chain->max_boundary), now);
  std::vector<BoundaryState> states;
  while (found.matched_tokens > 0 && walk.Next(&states)) {
    for (const BoundaryState& state : states) {
      if (!IsUsable(state, now)) continue;
      assert(state.boundary > found.boundary && state.boundary <= highest);
      found.node = state.node;
      found.boundary = state.boundary;
    }
  }
  return found;
}

bool Fetcher::IsUsable(const BoundaryState& state, absl::Time now) const {
  if (!state.usable()) return false;
  const bool any_has_expired = core_->catalog.expiry().next() <= now;
  if (RestorePointEntry* point = state.node->restore_point; point != nullptr) {
    return !any_has_expired || !HasExpired(*point, now);
  }
  // Check the expiry: a session may still hold objects of a boundary whose restore points are all
  // gone.
  return !any_has_expired && state.until > now;
}

FetchSessionImpl::FetchSessionImpl(StoreCore* core, const char* miss_reason,
                                   uint32_t matched_tokens)
    : core_(core) {
  plan_.matched_tokens = matched_tokens;
  plan_.miss_reason = miss_reason;
}

FetchSessionImpl::FetchSessionImpl(StoreCore* core, Quarantiner* quarantiner, Promoter* promoter,
                                   RestorePointEntry* point, Use use)
    : core_(core),
      quarantiner_(quarantiner),
      promoter_(promoter),
      use_(use),
      point_id_(point->id()),
      point_number_(point->number) {
  core_->mu.AssertHeld();
  core_->catalog.HoldPoint(point);
  plan_.fingerprint = point->model->fingerprint;
  plan_.layout = point->model->layout;
  plan_.cuts.assign(point->cuts().begin(), point->cuts().end());
  plan_.usable_tokens = point->tokens();
  plan_.token_ids = TokensOf(point->node);
  plan_.total_bytes = point->bytes();
  plan_.expires = point->expiry.at;
  plan_.slowest_tier = point->slowest_tier();
  plan_.on_device = core_->tiers.AreOnDevice(point->objects);
  objects_.assign(point->objects.begin(), point->objects.end());
  served_.resize(objects_.size());
  copies_.reserve(objects_.size());
  plan_.objects.reserve(objects_.size());
  for (StoredObject* object : objects_) {
    core_->objects.Hold(object);
    copies_.push_back(object->host);
    const absl::Span<const uint64_t> digests = object->slice_digests();
    plan_.objects.push_back(PlannedObject{object->id,
                                          {digests.begin(), digests.end()},
                                          object->in_host() ? Tier::kHost : Tier::kDisk});
    unserved_slices_ += object->layers().size();
  }
  assert(copies_.size() == objects_.size() && plan_.objects.size() == objects_.size());
  assert(unserved_slices_ > 0 && plan_.token_ids.size() == plan_.usable_tokens);
  if (!use_.is_export && plan_.slowest_tier == Tier::kDisk && !plan_.on_device &&
      promoter_->MayPromote(*point)) {
    kept_.resize(objects_.size());
  }
  plan_.slowest_tier = std::max(plan_.slowest_tier, use_.loaded_from);
}

FetchSessionImpl::~FetchSessionImpl() {
  if (point_number_ == 0) return;
  StoreLock lock(core_);
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i].slices.empty()) promoter_->Unclaim(objects_[i]);
  }
  RestorePointEntry* point = core_->catalog.Find(point_id_);
  if (point != nullptr && point->number == point_number_) core_->catalog.ReleasePoint(point);
  // Release the objects in reverse order, so that the last objects of a prompt are the first to be
  // dropped from RAM.
  for (size_t i = objects_.size(); i-- > 0;) {
    const Served& served = served_[i];
    if (!use_.is_export) core_->objects.NoteUse(objects_[i]);
    objects_[i]->ram.read |= served.from_host;
    objects_[i]->disk.read |= served.from_disk;
    if (served.from_disk && unserved_slices_ == 0) quarantiner_->NoteRead(objects_[i]);
    if (!use_.is_export && (served.from_host || served.from_disk)) {
      promoter_->NoteFetched(objects_[i]);
    }
    core_->objects.Release(objects_[i]);
  }
}

void FetchSessionImpl::NoteServed(size_t object, Tier from) {
  Served& served = served_[object];
  // The object counts as read from the gpu tier, even if some of its slices are also read from
  // another tier.
  if (served.from_device && from != Tier::kGpu) return;
  (from == Tier::kDisk  ? served.from_disk
   : from == Tier::kGpu ? served.from_device
                        : served.from_host) = true;
  if (unserved_slices_ == 0 || --unserved_slices_ > 0 || use_.is_export) return;
  // The tier for which the tokens count is known only at the end, because a copy in RAM may turn
  // out to be damaged or gone. A restore point that was not read completely counts for no tier.
  Tier tier = std::max(Tier::kGpu, use_.loaded_from);
  for (const Served& served : served_) {
    if (served.from_host) tier = std::max(tier, Tier::kHost);
    if (served.from_disk) tier = std::max(tier, Tier::kDisk);
  }
  core_->meters.fetches[StoreMeters::Of(tier)].Observe(begun_.Elapsed());
  if (use_.again) return;
  core_->meters.hit_tokens[StoreMeters::Of(tier)] += plan_.usable_tokens;
  CountSaved(core_, plan_.usable_tokens, use_.token_ns);
}

absl::StatusOr<size_t> FetchSessionImpl::PlaceOf(size_t object, uint32_t layer) const {
  if (object >= objects_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("object index ", object, " must be below ", objects_.size()));
  }
  StoredObject* stored = objects_[object];
  const std::vector<uint32_t>& layers = stored->layers();
  const auto it = std::lower_bound(layers.begin(), layers.end(), layer);
  if (it == layers.end() || *it != layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not in this object's group"));
  }
  return static_cast<size_t>(it - layers.begin());
}

absl::StatusOr<SliceView> FetchSessionImpl::ReadSlice(size_t object, uint32_t layer) {
  const absl::StatusOr<size_t> place = PlaceOf(object, layer);
  if (!place.ok()) return place.status();
  StoredObject* const stored = objects_[object];
  const Stopwatch stopwatch;
  if (const std::optional<SliceView> held = InHost(object, *place); held.has_value()) {
    if (stored->IsIntact(*place, *held)) {
      NoteFromHost(object, held->bytes.size(), stopwatch);
      return *held;
    }
    // A damaged copy in RAM counts as a miss of the RAM tier: the disk may still have the bytes.
    core_->Count(Counter::kHostCorrupt);
    broken_.push_back(std::exchange(copies_[object], nullptr));
    quarantiner_->QuarantineHostCopy(stored);
  }
  if (core_->tiers.disk == nullptr) {
    absl::Status gone = absl::DataLossError(absl::StrCat("a slice of layer ", layer, " is lost"));
    quarantiner_->QuarantineObject(stored, gone);
    return gone;
  }
  absl::StatusOr<SliceView> read = core_->tiers.ReadFromDisk(*stored, *place);
  if (!read.ok()) {
    core_->Count(Counter::kTierErrors);
    quarantiner_->NoteReadFailure(stored, read.status());
    return read;
  }
  core_->Count(Counter::kBytesReadDisk, stored->slice_bytes);
  core_->meters.slice_reads[StoreMeters::Of(Tier::kDisk)].Observe(stopwatch.Elapsed());
  NoteServed(object, Tier::kDisk);
  KeepForPromotion(object, *place, *read);
  return read;
}

std::optional<SliceView> FetchSessionImpl::InHost(size_t object, size_t place) const {
  if (copies_[object] == nullptr) return std::nullopt;
  assert(place < copies_[object]->size());
  return (*copies_[object])[place];
}

std::optional<SliceView> FetchSessionImpl::PeekSlice(size_t object, uint32_t layer) {
  const Stopwatch stopwatch;
  const absl::StatusOr<size_t> place = PlaceOf(object, layer);
  const auto held = place.ok() ? InHost(object, *place) : std::nullopt;
  if (held.has_value()) NoteFromHost(object, held->bytes.size(), stopwatch);
  return held;
}

void FetchSessionImpl::NoteFromHost(size_t object, size_t bytes, const Stopwatch& stopwatch) {
  core_->Count(Counter::kBytesReadHost, bytes);
  core_->meters.slice_reads[StoreMeters::Of(Tier::kHost)].Observe(stopwatch.Elapsed());
  NoteServed(object, Tier::kHost);
}

std::optional<SegmentRange> FetchSessionImpl::ShareSlice(size_t object, uint32_t layer) {
  if (core_->tiers.arena == nullptr) return std::nullopt;
  const Stopwatch stopwatch;
  const absl::StatusOr<size_t> place = PlaceOf(object, layer);
  const auto held = place.ok() ? InHost(object, *place) : std::nullopt;
  if (!held.has_value()) return std::nullopt;
  const std::optional<SegmentRange> range =
      core_->tiers.arena->RangeOf(held->bytes.data(), held->bytes.size());
  if (!range.has_value()) return std::nullopt;
  core_->Count(Counter::kBytesShared, held->bytes.size());
  NoteFromHost(object, held->bytes.size(), stopwatch);
  return range;
}

DeviceRef FetchSessionImpl::OnDevice(size_t object) {
  if (core_->tiers.device == nullptr || object >= objects_.size()) return nullptr;
  DeviceRef copy = core_->tiers.device->Find(objects_[object]->number);
  if (copy == nullptr) return nullptr;
  core_->Count(Counter::kBytesReadGpu, copy->range.bytes);
  for (size_t i = 0; i < objects_[object]->layers().size(); ++i) NoteServed(object, Tier::kGpu);
  return copy;
}

std::optional<SegmentRange> FetchSessionImpl::ShareOnDevice(size_t object) {
  if (core_->tiers.device == nullptr || core_->tiers.device->segment() == nullptr) {
    return std::nullopt;
  }
  DeviceRef copy = OnDevice(object);
  if (copy == nullptr) return std::nullopt;
  const SegmentRange range = copy->range;
  shared_on_device_.push_back(std::move(copy));
  return range;
}

void FetchSessionImpl::KeepForPromotion(size_t object, size_t place, const SliceView& view) {
  if (kept_.empty()) return;
  Kept& kept = kept_[object];
  StoredObject* const stored = objects_[object];
  if (!std::exchange(kept.tried, true) && promoter_->Claim(stored)) {
    kept.slices.resize(stored->layers().size());
  }
  if (kept.slices.empty()) return;
  assert(place < kept.slices.size());
  if (kept.slices[place].owner != nullptr) return;
  kept.slices[place] = view;
  if (++kept.count < kept.slices.size()) return;
  assert(kept.count == stored->layers().size());
  promoter_->Promote(stored, std::move(kept.slices));
  kept.slices.clear();
}

}  // namespace hearth
