// The gpu tier's part of the store: what is copied to the device, and what is read from there.
#include <algorithm>
#include <utility>

#include "cache_store/store/sessions.h"

namespace hearth {
namespace {

// What is fetched once may never be again: three of four blocks of real traffic are not.
constexpr uint32_t kFetchesToCopy = 2;

}  // namespace

// A session ends: what it was not the first to read is worth a copy.
void Store::QueueForDevice(const FetchSessionImpl& session) {
  if (core_->tiers.device == nullptr) return;
  Executor* const executor =
      device_copier_ != nullptr ? device_copier_.get() : core_->executor.get();
  for (size_t i = 0; i < session.objects_.size(); ++i) {
    StoredObject* object = session.objects_[i];
    const FetchSessionImpl::Served& served = session.served_[i];
    if (!served.from_host && !served.from_disk) continue;
    if (++object->fetches < kFetchesToCopy || object->device_queued || object->retired ||
        !object->in_host || core_->tiers.device->Has(object->number)) {
      continue;
    }
    object->device_queued = executor->TrySchedule(
        object->bytes(), [this, number = object->number] { CopyToDevice(number); });
    if (!object->device_queued) core_->Count(Counter::kGpuPromotionsDropped);
  }
}

// The job. It holds no memory while it waits: what left RAM meanwhile is not worth a copy any more.
void Store::CopyToDevice(uint64_t number) {
  StoredObject* object = nullptr;
  {
    absl::MutexLock lock(&state_->mu);
    object = state_->catalog.FindObject(number);
    if (object == nullptr || object->retired || !object->in_host) {
      if (object != nullptr) object->device_queued = false;
      core_->Count(Counter::kGpuPromotionsDropped);
      return;
    }
    state_->catalog.Hold(object);
  }
  // Verified as they are read; a copy that rotted is for the next reader to quarantine.
  std::vector<SliceView> views;
  absl::StatusOr<DeviceLease> copy = absl::DataLossError("no whole copy in RAM");
  if (core_->tiers.HostViews(object, &views)) {
    std::vector<SliceWrite> slices;
    for (size_t i = 0; i < views.size(); ++i) slices.push_back({object->Slice(i), views[i]});
    copy = core_->tiers.device->CopyIn(slices);
  }
  {
    StoreLock lock(core_);
    object->device_queued = false;
    if (copy.ok() && !object->retired) {
      core_->tiers.device->Show(number, *std::move(copy));
      object->fetches = 0;  // evicted there, it has to be worth another
      core_->Count(Counter::kGpuPromotedObjects);
    } else {
      const bool no_room = absl::IsResourceExhausted(copy.status());
      core_->Count(copy.ok() || no_room ? Counter::kGpuPromotionsDropped
                                        : Counter::kGpuPromotionsFailed);
    }
    state_->catalog.Release(object);
  }
}

DeviceLease FetchSessionImpl::OnDevice(size_t object) {
  if (store_->core_->tiers.device == nullptr || object >= objects_.size()) return nullptr;
  DeviceLease copy = store_->core_->tiers.device->Find(objects_[object]->number);
  if (copy == nullptr) return nullptr;
  store_->core_->Count(Counter::kBytesReadGpu, copy->range.bytes);
  for (size_t i = 0; i < objects_[object]->layers.size(); ++i) NoteServed(object, Tier::kGpu);
  return copy;
}

std::optional<SegmentRange> FetchSessionImpl::ShareOnDevice(size_t object) {
  if (store_->core_->tiers.device == nullptr || store_->core_->tiers.device->segment() == nullptr)
    return std::nullopt;
  DeviceLease copy = OnDevice(object);
  if (copy == nullptr) return std::nullopt;
  const SegmentRange range = copy->range;
  shared_on_device_.push_back(std::move(copy));
  return range;
}

std::optional<SharedMemory> Store::shared_device() const {
  if (core_->tiers.device == nullptr || core_->tiers.device->segment() == nullptr)
    return std::nullopt;
  return SharedMemory{core_->tiers.device->segment()->fd(),
                      core_->tiers.device->segment()->layout()};
}

}  // namespace hearth
