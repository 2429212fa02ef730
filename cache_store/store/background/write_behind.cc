#include "cache_store/store/background/write_behind.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace hearth {

void WriteBehind::BeginDeferring() {
  state_->mu.AssertHeld();
  is_deferring_.store(true);
}

std::vector<Digest> WriteBehind::EndDeferring() {
  state_->mu.AssertHeld();
  is_deferring_.store(false);
  return std::exchange(deferred_, {});
}

void WriteBehind::Schedule(std::vector<Digest> points, uint64_t bytes) {
  if (is_deferring_.load()) {
    StateLock lock(state_);
    if (is_deferring_.load()) {
      deferred_.insert(deferred_.end(), points.begin(), points.end());
      return;
    }
  }
  const auto job = [this, points = std::move(points)] {
    for (const Digest& id : points) Write(id);
  };
  if (!core_->executor->TrySchedule(bytes, job)) core_->Count(Counter::kWriteBehindSkipped);
}

// Fills `work` with what the disk lacks of `point`, references and room taken.
bool WriteBehind::Prepare(const RestorePointEntry* point, Persisting* work) {
  state_->mu.AssertHeld();
  assert(!point->durable);
  uint64_t bytes = point->manifest_cost_bytes;
  for (const StoredObject* object : point->objects) {
    if (object->on_disk) continue;
    work->objects.push_back(object);
    bytes += object->disk_cost_bytes();
  }
  for (const StoredObject* object : work->objects) state_->objects.Hold(object);
  state_->catalog.HoldPoint(point);
  const bool reserved = state_->evictor.ReserveDisk(bytes, point->tenant);
  if (reserved) work->reserved_bytes = bytes;
  state_->catalog.ReleasePoint(point);
  work->fingerprint = FingerprintRecord{point->model->fingerprint, point->tenant};
  work->manifests.push_back(ManifestWriter::RecordOf(*point));
  work->points.push_back(point->id);
  return reserved;
}

void WriteBehind::Write(const Digest& id) {
  Persisting work;
  std::vector<Digest> claims = {id};
  bool ready = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    if (const RestorePointEntry* point = state_->catalog.Find(id); point != nullptr) {
      for (const StoredObject* object : point->objects) {
        if (!object->on_disk) claims.push_back(object->key);
      }
    }
    state_->AwaitClaim(claims);
    const RestorePointEntry* point = state_->catalog.Find(id);
    bool unclaimed = false;  // the point came, or came anew, while this waited
    if (point != nullptr) {
      for (const StoredObject* object : point->objects) {
        unclaimed |= !object->on_disk &&
                     std::find(claims.begin(), claims.end(), object->key) == claims.end();
      }
    }
    if (point == nullptr || point->durable || unclaimed) {
      if (unclaimed) core_->Count(Counter::kWriteBehindSkipped);
      state_->flight.Release(claims);
      return;
    }
    if (!state_->evictor.IsWorthWriting(*point)) {
      core_->Count(Counter::kWriteBehindSkipped);
      state_->flight.Release(claims);
      return;
    }
    ready = Prepare(point, &work);
  }
  core_->eraser.EraseFromDisk().IgnoreError();
  // RAM reads verify digests, so they are done without the lock; references keep the copies.
  for (const StoredObject* object : work.objects) {
    ready = ready && core_->tiers.HostViews(object, &work.views.emplace_back());
  }
  const bool written = ready && manifests_->Write(&work, false).ok();
  if (!written) core_->Count(Counter::kWriteBehindFailed);
  std::vector<uint64_t> orphans;
  bool pinned = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    state_->evictor.UnreserveDisk(work.reserved_bytes);
    const RestorePointEntry* point = state_->catalog.Find(id);
    const bool present = point != nullptr && point->manifest == work.manifests[0].number;
    if (written && present) {
      state_->catalog.SetDurable(point);
      core_->events.Post(StoreEvent::Kind::kDurable, core_->Describe(*point));
      pinned = point->pinned;
    } else if (written) {
      state_->objects.DiscardManifest(work.manifests[0].number);
    } else {
      orphans = manifests_->AbandonWrite(work);
    }
    for (size_t i = 0; i < work.objects.size(); ++i) {
      const StoredObject* object = work.objects[i];
      if (written) state_->objects.SetOnDisk(object, work.compressed_bytes[i]);
      state_->objects.Release(object);  // may be its end
    }
  }
  core_->eraser.EraseFromDisk(orphans).IgnoreError();
  if (pinned) core_->tiers.disk->SetPinned(work.manifests[0].number, true).IgnoreError();
  // Last: what was erased may be another publisher's to write.
  StateLock lock(state_);
  state_->flight.Release(claims);
}

}  // namespace hearth
