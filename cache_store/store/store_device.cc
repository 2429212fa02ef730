// The gpu tier's part of the store: what is copied to the device, and what is read from there.
#include <algorithm>
#include <utility>

#include "cache_store/store/sessions.h"

namespace hearth {
namespace {

// What is fetched once may never be again: three of four blocks of real traffic are not.
constexpr uint32_t kFetchesToCopy = 2;

}  // namespace

bool Store::IsOnDevice(absl::Span<StoredObject* const> objects) const {
  return device_ != nullptr && !objects.empty() &&
         std::all_of(objects.begin(), objects.end(),
                     [this](const StoredObject* object) { return device_->Has(object->number); });
}

// A session ends: what it was not the first to read is worth a copy.
void Store::QueueForDevice(const FetchSessionImpl& session) {
  if (device_ == nullptr) return;
  Executor* const executor = device_copier_ != nullptr ? device_copier_.get() : executor_.get();
  for (size_t i = 0; i < session.objects_.size(); ++i) {
    StoredObject* object = session.objects_[i];
    const FetchSessionImpl::Served& served = session.served_[i];
    if (!served.from_host && !served.from_disk) continue;
    if (++object->fetches < kFetchesToCopy || object->device_queued || object->retired ||
        !object->in_host || device_->Has(object->number)) {
      continue;
    }
    object->device_queued = executor->TrySchedule(
        object->bytes(), [this, number = object->number] { CopyToDevice(number); });
    if (!object->device_queued) counters_.Add(Counter::kGpuPromotionsDropped);
  }
}

// The job. It holds no memory while it waits: what left RAM meanwhile is not worth a copy any more.
void Store::CopyToDevice(uint64_t number) {
  StoredObject* object = nullptr;
  {
    absl::MutexLock lock(&mu_);
    object = catalog_.FindObject(number);
    if (object == nullptr || object->retired || !object->in_host) {
      if (object != nullptr) object->device_queued = false;
      counters_.Add(Counter::kGpuPromotionsDropped);
      return;
    }
    catalog_.Hold(object);
  }
  // Verified as they are read; a copy that rotted is for the next reader to quarantine.
  std::vector<SliceView> views;
  absl::StatusOr<DeviceLease> copy = absl::DataLossError("no whole copy in RAM");
  if (HostViews(object, &views)) {
    std::vector<SliceWrite> slices;
    for (size_t i = 0; i < views.size(); ++i) slices.push_back({object->Slice(i), views[i]});
    copy = device_->CopyIn(slices);
  }
  Unsettled left;
  {
    absl::MutexLock lock(&mu_);
    object->device_queued = false;
    if (copy.ok() && !object->retired) {
      device_->Show(number, *std::move(copy));
      object->fetches = 0;  // evicted there, it has to be worth another
      counters_.Add(Counter::kGpuPromotedObjects);
    } else {
      const bool no_room = absl::IsResourceExhausted(copy.status());
      counters_.Add(copy.ok() || no_room ? Counter::kGpuPromotionsDropped
                                         : Counter::kGpuPromotionsFailed);
    }
    catalog_.Release(object);
    left = SettleHost();
  }
  SettleLater(left);
}

DeviceLease FetchSessionImpl::OnDevice(size_t object) {
  if (store_->device_ == nullptr || object >= objects_.size()) return nullptr;
  DeviceLease copy = store_->device_->Find(objects_[object]->number);
  if (copy == nullptr) return nullptr;
  store_->counters_.Add(Counter::kBytesReadGpu, copy->range.bytes);
  for (size_t i = 0; i < objects_[object]->layers.size(); ++i) NoteServed(object, Tier::kGpu);
  return copy;
}

std::optional<SegmentRange> FetchSessionImpl::ShareOnDevice(size_t object) {
  if (store_->device_ == nullptr || store_->device_->segment() == nullptr) return std::nullopt;
  DeviceLease copy = OnDevice(object);
  if (copy == nullptr) return std::nullopt;
  const SegmentRange range = copy->range;
  shared_on_device_.push_back(std::move(copy));
  return range;
}

std::optional<SharedMemory> Store::shared_device() const {
  if (device_ == nullptr || device_->segment() == nullptr) return std::nullopt;
  return SharedMemory{device_->segment()->fd(), device_->segment()->layout()};
}

}  // namespace hearth
