#include "cache_store/store/background/disk_writer.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "cache_store/catalog/prefix_walk.h"

namespace hearth {

absl::Status DiskWriter::Write(Persisting* work, bool sync) {
  assert(core_->tiers.disk != nullptr && work->objects.size() == work->views.size());
  uint64_t bytes = 0;
  for (const StoredObject* object : work->objects) bytes += object->bytes();
  std::vector<SliceWrite> slices;
  for (size_t i = 0; i < work->objects.size(); ++i) {
    const StoredObject& object = *work->objects[i];
    object.in_table.store(bytes >= core_->tiers.min_table_bytes);
    ++work->begun_objects;
    absl::Status status = core_->tiers.disk->WriteObject(ObjectRecordOf(object));
    if (!status.ok()) return status;
    for (size_t slice = 0; slice < object.layers.size(); ++slice) {
      slices.push_back({object.Slice(slice), work->views[i][slice]});
    }
  }
  const absl::Status written = core_->tiers.disk_slices->WriteAll(slices);
  if (!written.ok()) return OfDisk(written);
  if (!work->manifests.empty()) {
    work->begun_manifests = true;
    absl::Status status =
        core_->tiers.disk->CommitManifests(work->manifests, work->fingerprint, sync);
    for (const uint64_t number : work->pins) {
      if (status.ok()) core_->tiers.disk->SetPinned(number, true).IgnoreError();
    }
    return status;
  }
  return sync ? core_->tiers.disk->Sync() : absl::OkStatus();
}

std::vector<uint64_t> DiskWriter::AbandonWrite(const Persisting& work) {
  core_->mu.AssertHeld();
  assert(work.begun_objects <= work.objects.size());
  assert(work.manifests.size() == work.points.size());
  std::vector<uint64_t> orphans;
  for (size_t i = 0; i < work.begun_objects; ++i) {
    core_->objects.SetBegunOnDisk(work.objects[i]);
    orphans.push_back(work.objects[i]->number);
  }
  if (!work.begun_manifests) return orphans;
  for (size_t i = 0; i < work.manifests.size(); ++i) {
    const uint64_t number = work.manifests[i].number;
    core_->erasures.AddManifests({number});
    // The erase may have to wait: what the point is written as next is not to be hit by it.
    const RestorePointEntry* point = core_->catalog.Find(work.points[i]);
    if (point != nullptr && point->manifest == number) {
      core_->catalog.SetManifest(point, core_->objects.NextNumber());
    }
  }
  return orphans;
}

ManifestRecord DiskWriter::RecordOf(const RestorePointEntry& point) {
  ManifestRecord record =
      NewRecord(point.manifest, point.tenant, TokensOf(point.node), point.objects);
  record.created_unix_s = static_cast<uint64_t>(absl::ToUnixSeconds(point.uses.last));
  record.expires_unix_s = ExpiresUnixSeconds(point.expiry.at);
  record.inherited = point.expiry.inherited;
  record.manifest.fingerprint = point.model->fingerprint.digest();
  record.manifest.cuts = point.cuts;
  return record;
}

ManifestRecord DiskWriter::NewRecord(uint64_t number, const std::string& tenant,
                                     std::vector<uint32_t> token_ids,
                                     const std::vector<const StoredObject*>& objects) {
  ManifestRecord record;
  record.number = number;
  record.tenant = tenant;
  Manifest& manifest = record.manifest;
  manifest.token_count = manifest.next_position = static_cast<uint32_t>(token_ids.size());
  manifest.token_ids = std::move(token_ids);
  for (const StoredObject* object : objects) {
    record.objects.push_back(object->number);
    manifest.objects.push_back(ManifestObject{object->id, object->slice_digests});
  }
  return record;
}

void DiskWriter::Schedule(std::vector<Digest> points, uint64_t bytes) {
  const auto job = [this, points = std::move(points)] {
    for (const Digest& id : points) WriteBehind(id);
  };
  if (!core_->executor->TrySchedule(bytes, job)) core_->Count(Counter::kWriteBehindSkipped);
}

// Fills `work` with what the disk lacks of `point`, references and room taken. The manifest that is
// there is replaced.
bool DiskWriter::Prepare(const RestorePointEntry* point, Persisting* work) {
  core_->mu.AssertHeld();
  uint64_t bytes = point->manifest_cost_bytes;
  for (const StoredObject* object : point->objects) {
    if (object->on_disk) continue;
    work->objects.push_back(object);
    bytes += object->disk_cost_bytes();
  }
  for (const StoredObject* object : work->objects) core_->objects.Hold(object);
  core_->catalog.HoldPoint(point);
  const bool reserved = core_->evictor.ReserveDisk(bytes, point->tenant);
  if (reserved) work->reserved_bytes = bytes;
  core_->catalog.ReleasePoint(point);
  work->fingerprint = FingerprintRecord{point->model->fingerprint, point->tenant};
  ManifestRecord& record = work->manifests.emplace_back(RecordOf(*point));
  if (point->durable) record.number = core_->objects.NextNumber();
  if (point->pinned) work->pins.push_back(record.number);
  work->points.push_back(point->id);
  return reserved;
}

void DiskWriter::WriteBehind(const Digest& id) {
  Persisting work;
  std::vector<Digest> claims = {id};
  uint64_t number = 0;  // the point's
  bool ready = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    if (const RestorePointEntry* point = core_->catalog.Find(id); point != nullptr) {
      for (const StoredObject* object : point->objects) {
        if (!object->on_disk) claims.push_back(object->key);
      }
    }
    core_->AwaitClaim(claims);
    const RestorePointEntry* point = core_->catalog.Find(id);
    bool unclaimed = false;  // the point came, or came anew, while this waited
    if (point != nullptr) {
      for (const StoredObject* object : point->objects) {
        unclaimed |= !object->on_disk &&
                     std::find(claims.begin(), claims.end(), object->key) == claims.end();
      }
    }
    if (point == nullptr || unclaimed || !core_->evictor.IsWorthWriting(*point)) {
      if (point != nullptr) core_->Count(Counter::kWriteBehindSkipped);
      core_->flight.Release(claims);
      return;
    }
    number = point->number;
    ready = Prepare(point, &work);
  }
  core_->EraseFromDisk().IgnoreError();
  // RAM reads verify digests, so they are done without the lock; references keep the copies.
  for (const StoredObject* object : work.objects) {
    ready = ready && core_->HostViews(object, &work.views.emplace_back());
  }
  const bool written = ready && Write(&work, false).ok();
  if (!written) core_->Count(Counter::kWriteBehindFailed);
  std::vector<uint64_t> orphans;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    core_->evictor.UnreserveDisk(work.reserved_bytes);
    const RestorePointEntry* point = core_->catalog.Find(id);
    if (written && point != nullptr && point->number == number) {
      const bool is_new = !point->durable;
      core_->catalog.SetDurable(point, work.manifests[0].number);
      if (is_new) core_->events.Post(StoreEvent::Kind::kDurable, core_->Describe(*point));
    } else if (written) {
      core_->objects.DiscardManifest(work.manifests[0].number);
    } else {
      orphans = AbandonWrite(work);
    }
    for (const StoredObject* object : work.objects) {
      if (written) core_->objects.SetOnDisk(object);
      core_->objects.Release(object);  // may be its end
    }
  }
  core_->EraseFromDisk(orphans).IgnoreError();
  // Last: what was erased may be another publisher's to write.
  StoreLock lock(core_);
  core_->flight.Release(claims);
}

}  // namespace hearth
