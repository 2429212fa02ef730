#include "cache_store/store/background/device_copier.h"

#include <cassert>
#include <vector>

namespace hearth {
namespace {

// Three of four blocks of real traffic are fetched only once.
constexpr uint32_t kFetchesToCopy = 2;

}  // namespace

void DeviceCopier::NoteFetched(const StoredObject* object) {
  state_->mu.AssertHeld();
  assert(object->sessions > 0);
  if (core_->tiers.device == nullptr) return;
  if (state_->objects.CountFetch(object) < kFetchesToCopy || object->reads.queued_for_device ||
      object->retired || !object->in_host || core_->tiers.device->Has(object->number)) {
    return;
  }
  Executor* const executor = executor_ != nullptr ? executor_.get() : core_->executor.get();
  const bool queued =
      executor->TrySchedule(object->bytes(), [this, number = object->number] { Copy(number); });
  state_->objects.SetQueuedForDevice(object, queued);
  if (!queued) core_->Count(Counter::kGpuPromotionsDropped);
}

// The job. It holds no memory while it waits: what left RAM meanwhile is not worth a copy any more.
void DeviceCopier::Copy(uint64_t number) {
  const StoredObject* object = nullptr;
  {
    StateLock lock(state_);
    object = state_->objects.Find(number);
    if (object == nullptr || object->retired || !object->in_host) {
      if (object != nullptr) state_->objects.SetQueuedForDevice(object, false);
      core_->Count(Counter::kGpuPromotionsDropped);
      return;
    }
    state_->objects.Hold(object);
  }
  // Verified as they are read; a copy that rotted is for the next reader to quarantine.
  std::vector<SliceView> views;
  absl::StatusOr<DeviceRef> copy = absl::DataLossError("no whole copy in RAM");
  if (core_->tiers.HostViews(object, &views)) {
    std::vector<SliceWrite> slices;
    for (size_t i = 0; i < views.size(); ++i) slices.push_back({object->Slice(i), views[i]});
    copy = core_->tiers.device->CopyIn(slices);
  }
  StoreLock lock(core_);
  state_->objects.SetQueuedForDevice(object, false);
  if (copy.ok() && !object->retired) {
    core_->tiers.device->MakeVisible(number, *std::move(copy));
    state_->objects.ForgetFetches(object);  // evicted there, it has to be worth another
    core_->Count(Counter::kGpuPromotedObjects);
  } else {
    const bool no_room = absl::IsResourceExhausted(copy.status());
    core_->Count(copy.ok() || no_room ? Counter::kGpuPromotionsDropped
                                      : Counter::kGpuPromotionsFailed);
  }
  state_->objects.Release(object);
}

}  // namespace hearth
