#include "cache_store/store/background/disk_writer.h"

#include <cassert>
#include <utility>

#include "absl/algorithm/container.h"
#include "cache_store/catalog/prefix_walk.h"

namespace hearth {

absl::Status DiskWriter::Persist(Persisting* work, bool sync,
                                 absl::FunctionRef<void(const absl::Status&)> end) {
  assert(core_->tiers.disk != nullptr && !work->claims.empty());
  core_->ReclaimBeforeWrite();
  const absl::Status written = Write(work, sync);
  if (!written.ok()) core_->Count(Counter::kTierErrors);
  if (absl::IsResourceExhausted(written)) core_->lacks_room.store(true);
  std::vector<uint64_t> orphans;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    core_->evictor.UnreserveDisk(work->reserved_bytes);
    if (written.ok()) {
      for (const auto& written_one : work->objects) core_->objects.SetOnDisk(written_one.object);
    } else {
      orphans = AbandonWrite(*work);
    }
    end(written);
    if (written.ok()) core_->flight.Release(work->claims);
  }
  core_->EraseFromDisk(orphans).IgnoreError();
  if (written.ok()) return written;
  // Other publishers may write these objects only now, after the leftovers were erased.
  StoreLock lock(core_);
  core_->flight.Release(work->claims);
  return written;
}

absl::Status DiskWriter::Write(Persisting* work, bool sync) {
  assert(core_->tiers.disk != nullptr);
  if (absl::Status has_room = core_->tiers.disk->MayAdd(); !has_room.ok()) return has_room;
  uint64_t bytes = 0;
  for (const auto& [object, key, copy, is_verified] : work->objects) {
    if (!is_verified && !object->IsIntact(copy)) {
      return absl::UnavailableError(
          "an object that was only in RAM left RAM, or its bytes changed");
    }
    bytes += object->bytes();
  }
  std::vector<SliceWrite> slices;
  for (const auto& [object, key, copy, is_verified] : work->objects) {
    object->in_table.store(bytes >= core_->tiers.min_table_bytes);
    ++work->begun_objects;
    absl::Status status = core_->tiers.disk->WriteObject(ObjectRecordOf(*object, key));
    if (!status.ok()) return status;
    object->AddWrites(copy, &slices);
  }
  assert(work->begun_objects == work->objects.size());
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
    core_->objects.SetBegunOnDisk(work.objects[i].object);
    orphans.push_back(work.objects[i].object->number);
  }
  if (!work.begun_manifests) return orphans;
  for (size_t i = 0; i < work.manifests.size(); ++i) {
    const uint64_t number = work.manifests[i].number;
    core_->objects.DiscardManifest(number);
    // Give the restore point a new manifest number: the erase of the old manifest may be delayed,
    // and must not erase the next one.
    RestorePointEntry* point = core_->catalog.Find(work.points[i]);
    if (point != nullptr && point->manifest == number) {
      core_->catalog.SetManifest(point, core_->objects.NextNumber());
    }
  }
  return orphans;
}

ManifestRecord DiskWriter::RecordOf(const RestorePointEntry& point) {
  ManifestRecord record =
      NewRecord(point.manifest, point.tenant(), TokensOf(point.node), point.objects);
  record.created_unix_s = static_cast<uint64_t>(absl::ToUnixSeconds(point.uses.last));
  record.expires_unix_s = ExpiresUnixSeconds(point.expiry.at);
  record.inherited = point.expiry.inherited;
  record.manifest.fingerprint = point.model->fingerprint.digest();
  record.manifest.cuts.assign(point.cuts().begin(), point.cuts().end());
  return record;
}

ManifestRecord DiskWriter::NewRecord(uint64_t number, const std::string& tenant,
                                     std::vector<uint32_t> token_ids,
                                     absl::Span<StoredObject* const> objects) {
  ManifestRecord record;
  record.number = number;
  record.tenant = tenant;
  Manifest& manifest = record.manifest;
  manifest.token_count = manifest.next_position = static_cast<uint32_t>(token_ids.size());
  manifest.token_ids = std::move(token_ids);
  for (StoredObject* object : objects) {
    record.objects.push_back(object->number);
    const absl::Span<const uint64_t> digests = object->slice_digests();
    manifest.objects.push_back(ManifestObject{object->id, {digests.begin(), digests.end()}});
  }
  return record;
}

void DiskWriter::Schedule(std::vector<Digest> points, uint64_t bytes) {
  const auto job = [this, points = std::move(points)] {
    for (const Digest& id : points) WriteBehind(id);
  };
  if (!core_->executor->TrySchedule(bytes, job)) core_->Count(Counter::kWriteBehindSkipped);
}

// Fills `work` with the objects of `point` that the disk does not have, takes references on them,
// and reserves disk space. A new manifest replaces an existing one. Returns false, and changes
// nothing, if there is no space.
bool DiskWriter::Prepare(RestorePointEntry* point, bool may_evict, Persisting* work) {
  core_->mu.AssertHeld();
  work->reserved_bytes = point->manifest_cost_bytes;
  for (StoredObject* object : point->objects) {
    if (object->on_disk) continue;
    work->objects.push_back({object, object->key(), object->host});
    work->reserved_bytes += object->disk_cost_bytes();
    assert(object->in_host());  // an object that is not on disk is in RAM
    core_->objects.Hold(object);
  }
  core_->catalog.HoldPoint(point);
  const bool reserved = (may_evict || core_->evictor.FitsOnDisk(work->reserved_bytes)) &&
                        core_->evictor.ReserveDisk(work->reserved_bytes, point->tenant());
  core_->catalog.ReleasePoint(point);
  if (!reserved) {
    for (const auto& held : work->objects) core_->objects.Release(held.object);
    return false;
  }
  work->fingerprint = FingerprintRecord{point->model->fingerprint, point->tenant()};
  ManifestRecord& record = work->manifests.emplace_back(RecordOf(*point));
  if (point->durable) record.replaced = std::exchange(record.number, core_->objects.NextNumber());
  if (point->pinned) work->pins.push_back(record.number);
  assert(record.number > 0 && record.objects.size() == point->objects.size());
  work->points.push_back(point->id());
  return true;
}

void DiskWriter::WriteBehind(const Digest& id) {
  Persisting work;
  work.claims = {id};
  uint64_t number = 0;  // number of the restore point; 0: it is not written
  const bool may_evict = core_->MayEvictForDisk(0);
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    if (RestorePointEntry* point = core_->catalog.Find(id); point != nullptr) {
      for (StoredObject* object : point->objects) {
        if (!object->on_disk) work.claims.push_back(object->key());
      }
    }
    core_->Claim(work.claims);
    RestorePointEntry* point = core_->catalog.Find(id);
    // False if the restore point was added, or replaced, while Claim() waited.
    const auto is_claimed = [&](const StoredObject* object) {
      return object->on_disk || absl::c_linear_search(work.claims, object->key());
    };
    if (point != nullptr && absl::c_all_of(point->objects, is_claimed) &&
        core_->evictor.IsWorthWriting(*point) && Prepare(point, may_evict, &work)) {
      number = point->number;
    } else {
      if (point != nullptr) core_->Count(Counter::kWriteBehindSkipped);
      core_->flight.Release(work.claims);
    }
  }
  // erase the objects that were evicted to free space, even if it was not enough
  core_->EraseFromDisk().IgnoreError();
  if (number == 0) return;
  Persist(&work, false, [&](const absl::Status& written) {
    core_->mu.AssertHeld();
    RestorePointEntry* point = core_->catalog.Find(id);
    if (!written.ok()) {
      core_->Count(Counter::kWriteBehindFailed);
    } else if (point != nullptr && point->number == number) {
      const bool is_new = !point->durable;
      core_->catalog.SetDurable(point, work.manifests[0].number, EndOf(work.manifests[0]));
      if (is_new) core_->events.Post(StoreEvent::Kind::kDurable, core_->Describe(*point));
    } else {
      core_->objects.DiscardManifest(work.manifests[0].number);
    }
    for (const auto& held : work.objects) core_->objects.Release(held.object);
  }).IgnoreError();
}

}  // namespace hearth
