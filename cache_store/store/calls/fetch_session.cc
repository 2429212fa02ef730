#include "cache_store/store/calls/fetch_session.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/catalog/prefix_walk.h"

namespace hearth {

FetchSessionImpl::FetchSessionImpl(const FetchParts& parts, const char* miss_reason,
                                   uint32_t matched_tokens)
    : parts_(parts), core_(parts.core), state_(&parts.core->state) {
  plan_.matched_tokens = matched_tokens;
  plan_.miss_reason = miss_reason;
}

FetchSessionImpl::FetchSessionImpl(const FetchParts& parts, const RestorePointEntry* point)
    : parts_(parts),
      core_(parts.core),
      state_(&parts.core->state),
      point_id_(point->id),
      point_number_(point->number) {
  state_->mu.AssertHeld();
  state_->catalog.HoldPoint(point);
  if (HoldObjects(point)) return;
  plan_ = LookupPlan();
  plan_.miss_reason = "it was dropped meanwhile";
}

const RestorePointEntry* FetchSessionImpl::Point() const {
  const RestorePointEntry* point = state_->catalog.Find(point_id_);
  return point != nullptr && point->number == point_number_ ? point : nullptr;
}

bool FetchSessionImpl::HoldObjects(const RestorePointEntry* point) {
  state_->mu.AssertHeld();
  plan_.fingerprint = point->model->fingerprint;
  plan_.layout = point->model->layout;
  plan_.cuts = point->cuts;
  plan_.total_bytes = point->bytes();
  plan_.expires = point->expiry.at;
  plan_.token_ids.resize(point->tokens());
  plan_.slowest_tier = Tier::kHost;
  plan_.on_device = core_->tiers.device != nullptr;
  objects_.reserve(point->objects.size());
  plan_.objects.reserve(point->objects.size());
  for (const SegmentNode* node = point->node; node->parent != nullptr; node = node->parent) {
    std::copy(node->token_ids.begin(), node->token_ids.end(),
              plan_.token_ids.begin() + node->begin);
    if (state_->Yield(1) && Point() == nullptr) return false;
  }
  while (objects_.size() < point->objects.size()) {
    const StoredObject* object = point->objects[objects_.size()];
    state_->objects.Hold(object);
    objects_.push_back(object);
    plan_.objects.push_back(PlannedObject{object->id, object->slice_digests,
                                          object->in_host ? Tier::kHost : Tier::kDisk});
    if (!object->in_host) plan_.slowest_tier = Tier::kDisk;
    plan_.on_device = plan_.on_device && core_->tiers.device->Has(object->number);
    unserved_slices_ += object->layers.size();
    if (state_->Yield(1) && Point() == nullptr) return false;
  }
  served_.resize(objects_.size());
  plan_.usable_tokens = point->tokens();
  return true;
}

void FetchSessionImpl::BeginPromotion(const RestorePointEntry& point) {
  state_->mu.AssertHeld();
  assert(point.number == point_number_ && promotion_ == nullptr);
  promotion_ = parts_.promoter->Begin(point);
  if (promotion_ != nullptr) kept_.resize(objects_.size());
}

void FetchSessionImpl::SetLoadedFrom(Tier tier) {
  loaded_from_ = tier;
  plan_.slowest_tier = std::max(plan_.slowest_tier, tier);
}

FetchSessionImpl::~FetchSessionImpl() {
  if (point_number_ == 0) return;
  StoreLock lock(core_);
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i].slices.empty()) parts_.promoter->Unclaim(objects_[i]);
  }
  if (const RestorePointEntry* point = Point(); point != nullptr) {
    state_->catalog.ReleasePoint(point);
  }
  served_.resize(objects_.size());
  for (size_t i = 0; i < objects_.size(); ++i) {
    const Served& served = served_[i];
    state_->objects.NoteRead(objects_[i], served.from_host, served.from_disk);
    if (!is_export_ && (served.from_host || served.from_disk)) {
      parts_.copier->NoteFetched(objects_[i]);
    }
    state_->objects.Release(objects_[i]);
    state_->Yield(1);
  }
}

void FetchSessionImpl::NoteServed(size_t object, Tier from) {
  Served& served = served_[object];
  // Its bytes came from there, whatever else is read of it.
  if (served.from_device && from != Tier::kGpu) return;
  (from == Tier::kDisk  ? served.from_disk
   : from == Tier::kGpu ? served.from_device
                        : served.from_host) = true;
  if (unserved_slices_ > 0 && --unserved_slices_ == 0 && !is_export_) CountHit();
}

// Which tier the tokens came from is known only in the end: a RAM copy may have been broken, or
// gone. A restore point that was not read whole gave no tokens to anybody.
void FetchSessionImpl::CountHit() {
  Tier tier = std::max(Tier::kGpu, loaded_from_);
  for (const Served& served : served_) {
    if (served.from_host) tier = std::max(tier, Tier::kHost);
    if (served.from_disk) tier = std::max(tier, Tier::kDisk);
  }
  core_->meters.ObserveFetch(tier, begun_.Elapsed());
  if (!again_) core_->meters.AddHitTokens(tier, plan_.usable_tokens);
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
  absl::StatusOr<SliceView> view = ReadVerified(objects_[object], *place, &from_disk);
  if (view.ok()) NoteServed(object, from_disk ? Tier::kDisk : Tier::kHost);
  if (view.ok() && from_disk) KeepForPromotion(object, *place, *view);
  return view;
}

absl::StatusOr<SliceView> FetchSessionImpl::ReadVerified(const StoredObject* object, size_t slice,
                                                         bool* from_disk) {
  const StoredSlice ref = object->Slice(slice);
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
    parts_.quarantiner->QuarantineHostCopy(object);
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
      if (!parts_.quarantiner->IsReadFailureForGood(object, read.status())) return read.status();
      read = absl::DataLossError(absl::StrCat("failed twice: ", read.status().message()));
    }
  }
  // In no tier, or not what was written: never served again.
  const absl::Status lost =
      !read.ok() && absl::IsDataLoss(read.status())
          ? read.status()
          : absl::DataLossError(absl::StrCat("a slice of layer ", ref.layer, " is gone"));
  parts_.quarantiner->QuarantineObject(object, lost);
  return lost;
}

std::optional<SliceView> FetchSessionImpl::InHost(size_t object, uint32_t layer) {
  const absl::StatusOr<size_t> place = PlaceOf(object, layer);
  if (!place.ok()) return std::nullopt;
  const StoredSlice ref = objects_[object]->Slice(*place);
  absl::StatusOr<std::optional<SliceView>> held = core_->tiers.unverified_host->Read(ref);
  // ReadSlice finds out what is wrong with it.
  if (!held.ok() || !held->has_value() || (*held)->bytes.size() != ref.bytes) return std::nullopt;
  return **std::move(held);
}

std::optional<SliceView> FetchSessionImpl::PeekSlice(size_t object, uint32_t layer) {
  const Stopwatch stopwatch;
  std::optional<SliceView> held = InHost(object, layer);
  if (held.has_value()) NoteUnverified(object, held->bytes.size(), stopwatch);
  return held;
}

// Handed out from RAM without being read.
void FetchSessionImpl::NoteUnverified(size_t object, size_t bytes, const Stopwatch& stopwatch) {
  core_->Count(Counter::kBytesReadHost, bytes);
  core_->meters.ObserveSliceRead(Tier::kHost, stopwatch.Elapsed());
  NoteServed(object, Tier::kHost);
}

std::optional<SegmentRange> FetchSessionImpl::ShareSlice(size_t object, uint32_t layer) {
  if (core_->tiers.arena == nullptr) return std::nullopt;
  const Stopwatch stopwatch;
  std::optional<SliceView> held = InHost(object, layer);
  if (!held.has_value()) return std::nullopt;
  const std::optional<SegmentRange> range =
      core_->tiers.arena->RangeOf(held->bytes.data(), held->bytes.size());
  if (!range.has_value()) return std::nullopt;
  core_->Count(Counter::kBytesShared, held->bytes.size());
  NoteUnverified(object, held->bytes.size(), stopwatch);
  shared_.push_back(*std::move(held));
  return range;
}

DeviceRef FetchSessionImpl::OnDevice(size_t object) {
  if (core_->tiers.device == nullptr || object >= objects_.size()) return nullptr;
  DeviceRef copy = core_->tiers.device->Find(objects_[object]->number);
  if (copy == nullptr) return nullptr;
  core_->Count(Counter::kBytesReadGpu, copy->range.bytes);
  for (size_t i = 0; i < objects_[object]->layers.size(); ++i) NoteServed(object, Tier::kGpu);
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
  if (promotion_ == nullptr || promotion_->no_room) return;
  Kept& kept = kept_[object];
  const StoredObject* const stored = objects_[object];
  if (!std::exchange(kept.tried, true) && parts_.promoter->Claim(stored, promotion_.get())) {
    kept.slices.resize(stored->layers.size());
  }
  if (kept.slices.empty() || kept.slices[place].owner != nullptr) return;
  kept.slices[place] = view;
  if (++kept.count < kept.slices.size()) return;
  parts_.promoter->Promote(promotion_, stored, std::move(kept.slices));
  kept.slices.clear();
}

}  // namespace hearth
