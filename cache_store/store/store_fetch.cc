// Looking up and reading. The lookup takes references under the lock; bytes are read outside it.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/sessions.h"
#include "proto/prefix_key.h"

namespace hearth {
namespace {

constexpr uint32_t kMostReadFailures = 2;

}  // namespace

std::unique_ptr<FetchSession> Store::Miss(const PrefixQuery& query, Counter why, const char* reason,
                                          uint32_t matched_tokens) {
  if (!query.again) core_->Count(why);
  auto session = std::make_unique<FetchSessionImpl>(this);
  session->plan_.matched_tokens = matched_tokens;
  session->plan_.miss_reason = reason;
  return session;
}

absl::StatusOr<std::unique_ptr<FetchSession>> Store::Fetch(const PrefixQuery& query,
                                                           uint32_t above_tokens,
                                                           uint32_t max_tokens) {
  const Stopwatch stopwatch;
  auto session = Lookup(query, above_tokens, max_tokens);
  core_->meters.ObserveLookup(stopwatch.Elapsed());
  return session;
}

absl::StatusOr<std::unique_ptr<FetchSession>> Store::Lookup(const PrefixQuery& query,
                                                            uint32_t above_tokens,
                                                            uint32_t max_tokens) {
  if (absl::Status status = CheckQuery(query); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  core_->Count(query.again ? Counter::kRefetches : Counter::kFetches);
  if (!query.again) core_->Count(Counter::kLookupTokens, tokens);
  const uint32_t highest = max_tokens == 0 ? tokens - 1 : std::min(max_tokens, tokens);
  const absl::StatusOr<std::vector<Namespace>> chained = NamespacesOf(query, highest);
  if (!chained.ok()) return chained.status();
  const std::vector<Namespace>& spaces = *chained;
  if (spaces.empty()) {
    return Miss(query, Counter::kMissUnknownFingerprint, "nothing stored for this fingerprint", 0);
  }
  for (const Namespace& space : spaces) LoadFor(space.chain, space.model->layout);
  std::unique_ptr<FetchSessionImpl> session;
  std::vector<Digest> new_points;
  {
    StoreLock lock(core_);
    Found best;
    bool is_known = false;
    for (const Namespace& space : spaces) {
      // The tenant's own first: what is as long elsewhere is not looked for.
      if (best.space != nullptr && best.boundary == highest) break;
      if (!query.again) state_->catalog.Request(space.chain, tokens, core_->clock->Now());
      Found found = Search(query, space, highest);
      is_known |= found.is_known || unloaded_ != nullptr;
      const uint32_t matched = std::max(best.matched_tokens, found.matched_tokens);
      if (found.boundary > best.boundary) best = found;
      best.matched_tokens = matched;
    }
    if (!query.again) core_->Count(Counter::kMatchedTokens, best.matched_tokens);
    if (!is_known) {
      return Miss(query, Counter::kMissUnknownFingerprint, "nothing stored for this fingerprint",
                  0);
    }
    if (best.matched_tokens == 0) {
      return Miss(query, Counter::kMissNoCommonPrefix, "nothing stored begins like this prompt", 0);
    }
    if (best.boundary > above_tokens) session = BeginFetch(*best.space, best.node, &new_points);
    if (session == nullptr && best.boundary > 0 && best.boundary <= above_tokens) {
      return Miss(query, Counter::kMissNotAbove, "no restore point above what the caller has",
                  best.matched_tokens);
    }
    if (session == nullptr) {
      return Miss(query, Counter::kMissNoRestorePoint,
                  "no complete restore point in the common prefix", best.matched_tokens);
    }
    session->plan_.matched_tokens = best.matched_tokens;
    session->plan_.from_public = best.space->tenant != query.tenant;
    session->again_ = query.again;
    if (!query.again) core_->Count(Counter::kHits);
    if (session->plan_.from_public && !query.again) core_->Count(Counter::kPublicHits);
  }
  LookupPlan& plan = session->plan_;
  if (CutsAreKeyed(plan.layout.exactness)) {
    // The keys prove that these cuts and the stored ones make the same prefill steps.
    plan.cuts.clear();
    for (const uint32_t cut : query.cuts) {
      if (cut <= plan.usable_tokens) plan.cuts.push_back(cut);
    }
  }
  if (!new_points.empty()) ScheduleWriteBehind(new_points, 0);
  return session;
}

absl::StatusOr<std::unique_ptr<FetchSession>> Store::FetchById(const Digest& id,
                                                               const std::string& tenant) {
  if (absl::Status status = LoadPoint(id); !status.ok()) return status;
  absl::MutexLock lock(&state_->mu);
  RestorePointEntry* point = core_->FindOwned(id, tenant);
  if (point == nullptr) return absl::NotFoundError("no such restore point");
  core_->Count(Counter::kExports);
  std::unique_ptr<FetchSessionImpl> session = Hold(point);
  session->is_export_ = true;
  session->plan_.matched_tokens = session->plan_.usable_tokens;
  return session;
}

std::unique_ptr<FetchSessionImpl> Store::BeginFetch(const Namespace& space, SegmentNode* node,
                                                    std::vector<Digest>* new_points) {
  RestorePointEntry* point = node->restore_point;
  if (point == nullptr) {
    point = MakePoint(space, node);
    if (point == nullptr) return nullptr;
    if (core_->tiers.disk != nullptr) new_points->push_back(point->id);
  }
  state_->catalog.Touch(point, core_->clock->Now());
  ++point->hits;
  auto session = Hold(point);
  const LookupPlan& plan = session->plan_;
  if (plan.slowest_tier == Tier::kDisk && !plan.on_device) BeginPromotion(point, session.get());
  return session;
}

std::unique_ptr<FetchSessionImpl> Store::Hold(RestorePointEntry* point) {
  auto session = std::make_unique<FetchSessionImpl>(this);
  state_->catalog.HoldPoint(point);
  session->point_id_ = point->id;
  session->point_number_ = point->number;
  session->objects_ = point->objects;
  LookupPlan& plan = session->plan_;
  plan.usable_tokens = point->tokens();
  plan.fingerprint = point->model->fingerprint;
  plan.layout = point->model->layout;
  plan.token_ids = TokensOf(point->node);
  plan.cuts = point->cuts;
  plan.total_bytes = point->bytes();
  plan.slowest_tier = point->slowest_tier();
  for (StoredObject* object : point->objects) {
    state_->catalog.Hold(object);
    plan.objects.push_back(PlannedObject{object->id, object->slice_digests,
                                         object->in_host ? Tier::kHost : Tier::kDisk});
  }
  session->served_.resize(session->objects_.size());
  for (const StoredObject* object : session->objects_) {
    session->unserved_slices_ += object->layers.size();
  }
  plan.on_device = core_->tiers.AreOnDevice(point->objects);
  return session;
}

// A boundary that is complete without a manifest of its own: from here on it is a unit like any
// other. Null when what of it no restore point names any more is over the tenant's quota.
RestorePointEntry* Store::MakePoint(const Namespace& space, SegmentNode* node) {
  std::vector<StoredObject*> objects = ObjectsOf(space.model->layout, node);
  assert(!objects.empty());
  for (StoredObject* object : objects) state_->catalog.Hold(object);
  RestorePointEntry* point = nullptr;
  if (state_->catalog.Promise(space.tenant, objects)) {
    state_->catalog.BeginPublish(node->end());
    point = state_->catalog.AddRestorePoint(state_->catalog.NextNumber(), space.tenant, space.model,
                                            node, objects, CutsOf(node, space.model->layout),
                                            core_->clock->Now());
    state_->catalog.Unpromise(objects);
    if (point->slowest_tier() == Tier::kHost) state_->catalog.SetResident(point);
    core_->Count(Counter::kImplicitHits);
    core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
  }
  for (StoredObject* object : objects) state_->catalog.Release(object);
  return point;
}

void Store::EndFetch(FetchSessionImpl* session) {
  if (session->point_number_ == 0) return;
  {
    StoreLock lock(core_);
    RestorePointEntry* point = state_->catalog.Find(session->point_id_);
    const bool present = point != nullptr && point->number == session->point_number_;
    for (size_t i = 0; i < session->kept_.size(); ++i) {
      if (!session->kept_[i].slices.empty()) UnclaimPromotion(session->objects_[i]);
    }
    if (present) state_->catalog.ReleasePoint(point);
    for (size_t i = 0; i < session->objects_.size(); ++i) {
      if (session->served_[i].from_host) session->objects_[i]->read_in_host = true;
      if (session->served_[i].from_disk) session->objects_[i]->read_on_disk = true;
    }
    if (!session->is_export_) QueueForDevice(*session);
    for (StoredObject* object : session->objects_) state_->catalog.Release(object);
  }
}

void FetchSessionImpl::NoteServed(size_t object, Tier from) {
  Served& served = served_[object];
  // Its bytes came from there, whatever else is read of it.
  if (served.from_device && from != Tier::kGpu) return;
  (from == Tier::kDisk  ? served.from_disk
   : from == Tier::kGpu ? served.from_device
                        : served.from_host) = true;
  if (unserved_slices_ > 0 && --unserved_slices_ == 0 && !is_export_) store_->CountHit(*this);
}

// Which tier the tokens came from is known only in the end: a RAM copy may have been broken, or
// gone. A restore point that was not read whole gave no tokens to anybody.
void Store::CountHit(const FetchSessionImpl& session) {
  Tier tier = Tier::kGpu;
  for (const FetchSessionImpl::Served& served : session.served_) {
    if (served.from_host) tier = std::max(tier, Tier::kHost);
    if (served.from_disk) tier = Tier::kDisk;
  }
  core_->meters.ObserveFetch(tier, session.begun_.Elapsed());
  if (!session.again_) core_->meters.AddHitTokens(tier, session.plan_.usable_tokens);
}

absl::StatusOr<size_t> FetchSessionImpl::PlaceOf(size_t object, uint32_t layer) const {
  if (object >= objects_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("object ", object, " of ", objects_.size()));
  }
  const StoredObject* stored = objects_[object];
  const auto it = std::lower_bound(stored->layers.begin(), stored->layers.end(), layer);
  if (it == stored->layers.end() || *it != layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not of this object's group"));
  }
  return static_cast<size_t>(it - stored->layers.begin());
}

absl::StatusOr<SliceView> FetchSessionImpl::ReadSlice(size_t object, uint32_t layer) {
  const absl::StatusOr<size_t> place = PlaceOf(object, layer);
  if (!place.ok()) return place.status();
  bool from_disk = false;
  absl::StatusOr<SliceView> view = store_->ReadSlice(objects_[object], *place, &from_disk);
  if (view.ok()) NoteServed(object, from_disk ? Tier::kDisk : Tier::kHost);
  if (view.ok() && from_disk) Keep(object, *place, *view);
  return view;
}

absl::StatusOr<SliceView> Store::ReadSlice(StoredObject* object, size_t slice, bool* from_disk) {
  const SliceRef ref = object->Slice(slice);
  const Stopwatch stopwatch;
  absl::StatusOr<std::optional<SliceView>> read = core_->tiers.host_slices->Read(ref);
  if (read.ok() && read->has_value()) {
    core_->Count(Counter::kBytesReadHost, ref.bytes);
    core_->meters.ObserveSliceRead(Tier::kHost, stopwatch.Elapsed());
    return **std::move(read);
  }
  if (!read.ok()) {
    // A broken RAM copy is a miss of that tier: the disk may still have the bytes.
    core_->Count(absl::IsDataLoss(read.status()) ? Counter::kHostCorrupt : Counter::kTierErrors);
    QuarantineHostCopy(object);
  }
  if (core_->tiers.disk != nullptr) {
    *from_disk = true;
    read = core_->tiers.disk_slices->Read(ref);
    if (read.ok() && read->has_value()) {
      core_->Count(Counter::kBytesReadDisk, ref.bytes);
      core_->meters.ObserveSliceRead(Tier::kDisk, stopwatch.Elapsed());
      return **std::move(read);
    }
    if (!read.ok() && !absl::IsDataLoss(read.status())) {
      core_->Count(Counter::kTierErrors);
      if (!IsReadFailureForGood(object, read.status())) return read.status();
      read = absl::DataLossError(absl::StrCat("failed twice: ", read.status().message()));
    }
  }
  // In no tier, or not what was written: never served again.
  const absl::Status lost =
      !read.ok() && absl::IsDataLoss(read.status())
          ? read.status()
          : absl::DataLossError(absl::StrCat("a slice of layer ", ref.layer, " is gone"));
  Quarantine(object, lost);
  return lost;
}

// One error may be the device's bad moment. A second one of the same object is a bad sector or a
// file that is gone: until the object goes, nobody can publish it anew. What the process lacks
// (file descriptors, memory) says nothing about the object.
bool Store::IsReadFailureForGood(StoredObject* object, const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return false;
  absl::MutexLock lock(&state_->mu);
  return ++object->read_failures >= kMostReadFailures;
}

void Store::QuarantineHostCopy(StoredObject* object) {
  {
    StoreLock lock(core_);
    if (!object->in_host) return;
    if (object->on_disk) {
      for (RestorePointEntry* point : state_->catalog.PointsNaming(object))
        state_->catalog.Demote(point);
      state_->catalog.DropHostCopy(object);
    } else {
      QuarantineLocked(object);
    }
  }
}

void Store::Quarantine(StoredObject* object, const absl::Status& why) {
  bool is_new = false;
  {
    StoreLock lock(core_);
    is_new = QuarantineLocked(object);
  }
  if (is_new) {
    core_->warnings.Say("damage", absl::StrCat("object ", object->number,
                                               " is quarantined with all that "
                                               "names it: ",
                                               why.message()));
  }
}

bool Store::QuarantineLocked(StoredObject* object) {
  assert(object->sessions > 0);  // the reader's: it stays until the session ends
  if (object->retired) return false;
  core_->Count(Counter::kQuarantined);
  state_->history.Record(object->key, Removal::kQuarantined, core_->clock->Now());
  for (RestorePointEntry* point : state_->catalog.PointsNaming(object)) {
    state_->catalog.Remove(point, Removal::kQuarantined);
  }
  state_->catalog.Retire(object);
  return true;
}

}  // namespace hearth
