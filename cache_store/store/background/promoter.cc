#include "cache_store/store/background/promoter.h"

#include <cassert>

namespace hearth {
namespace {

// Number of fetches after which an object is copied to the gpu tier. In real traffic, three of four
// blocks are fetched only once.
constexpr uint32_t kFetchesToCopy = 2;

}  // namespace

bool Promoter::MayPromote(const RestorePointEntry& point) {
  core_->mu.AssertHeld();
  if (core_->evictor.limits().host_bytes == 0) return false;
  uint64_t bytes = 0, objects = 0;
  for (const StoredObject* object : point.objects) {
    if (!object->in_host()) bytes += object->bytes(), ++objects;
  }
  const bool may = core_->evictor.MayDemoteFor(bytes);
  if (!may) core_->Count(Counter::kPromotionsSkipped, objects);
  return may;
}

bool Promoter::Claim(StoredObject* object) {
  StoreLock lock(core_);
  if (object->in_host() || object->ram.begun || object->retired) return false;
  assert(promoting_bytes_ <= core_->options.max_background_bytes);
  if (object->bytes() > core_->options.max_background_bytes - promoting_bytes_) {
    core_->Count(Counter::kPromotionsSkipped);
    return false;
  }
  assert(object->sessions > 0);  // the caller's session holds the object
  promoting_bytes_ += object->bytes();
  object->ram.begun = true;
  return true;
}

void Promoter::Unclaim(StoredObject* object) {
  core_->mu.AssertHeld();
  assert(object->ram.begun && promoting_bytes_ >= object->bytes());
  promoting_bytes_ -= object->bytes();
  object->ram.begun = false;
}

void Promoter::Promote(StoredObject* object, std::vector<SliceView> views) {
  {
    StoreLock lock(core_);
    assert(object->ram.begun && object->sessions > 0 && views.size() == object->layers().size());
    core_->objects.Hold(object);
  }
  // The job counts as 0 bytes, because the executor's byte limit is for writes to disk, and
  // skipping such a write loses data.
  const bool scheduled =
      core_->executor->TrySchedule(0, [this, object, views] { InsertIntoHost(object, views); });
  if (scheduled) return;
  core_->Count(Counter::kPromotionsSkipped);
  StoreLock lock(core_);
  Unclaim(object);
  core_->objects.Release(object);  // does not free the object: the session also holds it
}

// Runs as a background job. Evicted copies are freed before their space is used.
void Promoter::InsertIntoHost(StoredObject* object, std::vector<SliceView> views) {
  bool has_room = false;
  uint64_t room_bytes = 0;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    if (object->names > 0 && !object->in_host()) {
      room_bytes = object->bytes() + core_->evictor.HostCopyCostBytes(*object);
      has_room = core_->evictor.ReserveHostByDemoting(room_bytes);
      if (!has_room) core_->Count(Counter::kPromotionsSkipped);
    }
  }
  HostCopy copy;
  if (has_room) {
    for (SliceView& view : views) view = core_->tiers.InArena(view);
    copy = std::make_shared<const std::vector<SliceView>>(std::move(views));
  }
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    if (has_room) {
      core_->evictor.UnreserveHost(room_bytes);
      if (object->names > 0 && !object->in_host()) {
        core_->objects.SetInHost(object, std::move(copy));
        core_->Count(Counter::kPromotedObjects);
      }
    }
    Unclaim(object);
    core_->objects.Release(object);
  }
  core_->EraseFromDisk()
      .IgnoreError();  // erase in this thread, because a closing store accepts no job
}

void Promoter::NoteFetched(StoredObject* object) {
  core_->mu.AssertHeld();
  assert(object->sessions > 0);
  if (core_->tiers.device == nullptr) return;
  if (object->fetches < kFetchesToCopy) ++object->fetches;
  if (object->fetches < kFetchesToCopy || object->copying || object->retired ||
      !object->in_host() || core_->tiers.device->Has(object->number)) {
    return;
  }
  Executor* const executor = copier_ != nullptr ? copier_.get() : core_->executor;
  const bool queued = executor->TrySchedule(
      object->bytes(), [this, number = object->number] { CopyToDevice(number); });
  object->copying = queued;
  if (!queued) core_->Count(Counter::kGpuPromotionsDropped);
}

// Runs as a background job. A queued job holds no memory; an object that was evicted from RAM since
// is not copied.
void Promoter::CopyToDevice(uint64_t number) {
  StoredObject* object = nullptr;
  {
    StoreLock lock(core_);
    object = core_->objects.Find(number);
    if (object == nullptr || object->retired || !object->in_host()) {
      if (object != nullptr) object->copying = false;
      core_->Count(Counter::kGpuPromotionsDropped);
      return;
    }
    core_->objects.Hold(object);
  }
  // IntactCopy() verifies the digests. A damaged copy is quarantined by its next reader.
  absl::StatusOr<DeviceRef> copy = absl::DataLossError("RAM has no intact copy");
  if (const HostCopy in_ram = core_->IntactCopy(object); in_ram != nullptr) {
    std::vector<SliceWrite> slices;
    object->AddWrites(in_ram, &slices);
    copy = core_->tiers.device->CopyIn(slices);
  }
  StoreLock lock(core_);
  assert(object->copying && object->sessions > 0);
  object->copying = false;
  if (copy.ok() && !object->retired) {
    core_->tiers.device->MakeVisible(number, *std::move(copy));
    object->fetches = 0;  // count again from 0, so that an evicted object needs new fetches
    core_->Count(Counter::kGpuPromotedObjects);
  } else {
    const bool no_room = absl::IsResourceExhausted(copy.status());
    core_->Count(copy.ok() || no_room ? Counter::kGpuPromotionsDropped
                                      : Counter::kGpuPromotionsFailed);
  }
  core_->objects.Release(object);
}

}  // namespace hearth
