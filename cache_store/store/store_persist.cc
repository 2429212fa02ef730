// Moving what is in RAM to the disk.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/disk/slice_codec.h"
#include "cache_store/store/sessions.h"

namespace hearth {
uint64_t Store::Compress(const Fingerprint& fingerprint, std::vector<SliceView>* views) {
  if (core_->options.disk_compression == DiskCompression::kNone) return 0;
  const absl::StatusOr<KvLayout> layout = fingerprint.Layout();
  if (!layout.ok()) return 0;
  uint64_t before = 0, after = 0;
  for (SliceView& view : *views) {
    before += view.bytes.size();
    std::optional<SliceView> encoded =
        EncodeSlice(view.bytes, static_cast<uint32_t>(KvDtypeBytes(layout->dtype)));
    if (encoded.has_value()) view = *std::move(encoded);
    after += view.bytes.size();
  }
  if (after == before) return 0;
  core_->Count(Counter::kCompressedFromBytes, before);
  core_->Count(Counter::kCompressedToBytes, after);
  return after;
}

absl::Status Store::Write(Persisting* work, bool sync) {
  assert(core_->tiers.disk != nullptr && work->objects.size() == work->views.size());
  std::vector<SliceWrite> slices;
  for (size_t i = 0; i < work->objects.size(); ++i) {
    const StoredObject& object = *work->objects[i];
    work->compressed_bytes.push_back(Compress(work->fingerprint.fingerprint, &work->views[i]));
    ObjectRecord record{object.number,
                        object.key,
                        object.id,
                        object.slice_bytes,
                        object.layers,
                        object.slice_digests,
                        work->compressed_bytes[i]};
    ++work->begun_objects;
    if (absl::Status status = core_->tiers.disk->WriteObject(record); !status.ok()) return status;
    for (size_t slice = 0; slice < object.layers.size(); ++slice) {
      slices.push_back({object.Slice(slice), work->views[i][slice]});
    }
  }
  if (absl::Status status = core_->tiers.disk_slices->WriteAll(slices); !status.ok()) return status;
  if (!work->manifests.empty()) {
    work->begun_manifests = true;
    return core_->tiers.disk->CommitManifests(work->manifests, work->points, work->fingerprint,
                                              sync);
  }
  return sync ? core_->tiers.disk->Sync() : absl::OkStatus();
}

std::vector<uint64_t> Store::AbandonWrite(const Persisting& work) {
  std::vector<uint64_t> orphans;
  for (size_t i = 0; i < work.begun_objects; ++i) {
    work.objects[i]->begun_on_disk = true;
    orphans.push_back(work.objects[i]->number);
  }
  if (!work.begun_manifests) return orphans;
  for (size_t i = 0; i < work.manifests.size(); ++i) {
    const uint64_t number = work.manifests[i].number;
    state_->erasures.AddManifests({number});
    // The erase may have to wait: what the point is written as next is not to be hit by it.
    RestorePointEntry* point = state_->catalog.Find(work.points[i]);
    if (point != nullptr && point->manifest == number)
      point->manifest = state_->catalog.NextNumber();
  }
  return orphans;
}

void Store::ScheduleWriteBehind(std::vector<Digest> points, uint64_t bytes) {
  if (is_loading_.load()) {
    absl::MutexLock lock(&state_->mu);
    if (unloaded_ != nullptr) {
      implicit_points_.insert(implicit_points_.end(), points.begin(), points.end());
      return;
    }
  }
  const auto job = [this, points = std::move(points)] {
    for (const Digest& id : points) WriteBehind(id);
  };
  if (!core_->executor->TrySchedule(bytes, job)) core_->Count(Counter::kWriteBehindSkipped);
}

ManifestRecord Store::ManifestOf(const RestorePointEntry& point) const {
  ManifestRecord record;
  record.number = point.manifest;
  record.tenant = point.tenant;
  record.created_unix_s = static_cast<uint64_t>(absl::ToUnixSeconds(point.last_use));
  record.expires_unix_s = ExpiresUnixSeconds(point.expires);
  record.inherited = point.inherited;
  Manifest& manifest = record.manifest;
  manifest.fingerprint = point.model->fingerprint.digest();
  manifest.token_count = manifest.next_position = point.tokens();
  manifest.token_ids = TokensOf(point.node);
  manifest.cuts = point.cuts;
  for (const StoredObject* object : point.objects) {
    record.objects.push_back(object->number);
    manifest.objects.push_back(ManifestObject{object->id, object->slice_digests});
  }
  return record;
}

// Fills `work` with what the disk lacks of `point`, references and room taken.
bool Store::PreparePersist(RestorePointEntry* point, Persisting* work) {
  uint64_t bytes = point->manifest_cost_bytes;
  for (StoredObject* object : point->objects) {
    if (object->on_disk) continue;
    work->objects.push_back(object);
    bytes += object->disk_cost_bytes();
  }
  for (StoredObject* object : work->objects) state_->catalog.Hold(object);
  state_->catalog.HoldPoint(point);
  const bool reserved = state_->catalog.ReserveDisk(bytes, point->tenant);
  if (reserved) work->reserved_bytes = bytes;
  state_->catalog.ReleasePoint(point);
  work->fingerprint = FingerprintRecord{point->model->fingerprint, point->tenant};
  work->manifests.push_back(ManifestOf(*point));
  work->points.push_back(point->id);
  return reserved;
}

void Store::WriteBehind(const Digest& id) {
  Persisting work;
  std::vector<Digest> claims = {id};
  bool ready = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    if (RestorePointEntry* point = state_->catalog.Find(id); point != nullptr) {
      for (const StoredObject* object : point->objects) {
        if (!object->on_disk) claims.push_back(object->key);
      }
    }
    state_->flight.Claim(&state_->mu, claims);
    RestorePointEntry* point = state_->catalog.Find(id);
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
    if (!state_->catalog.IsWorthWriting(*point)) {
      core_->Count(Counter::kWriteBehindSkipped);
      state_->flight.Release(claims);
      return;
    }
    ready = PreparePersist(point, &work);
  }
  core_->eraser.EraseFromDisk().IgnoreError();
  // RAM reads verify digests, so they are done without the lock; references keep the copies.
  for (const StoredObject* object : work.objects) {
    ready = ready && core_->tiers.HostViews(object, &work.views.emplace_back());
  }
  const bool written = ready && Write(&work, false).ok();
  if (!written) core_->Count(Counter::kWriteBehindFailed);
  std::vector<uint64_t> orphans;
  bool pinned = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    state_->catalog.UnreserveDisk(work.reserved_bytes);
    RestorePointEntry* point = state_->catalog.Find(id);
    const bool present = point != nullptr && point->manifest == work.manifests[0].number;
    if (written && present) {
      state_->catalog.SetDurable(point);
      core_->events.Post(StoreEvent::Kind::kDurable, core_->Describe(*point));
      pinned = point->pinned;
    } else if (written) {
      state_->catalog.DiscardManifest(work.manifests[0].number);
    } else {
      orphans = AbandonWrite(work);
    }
    for (size_t i = 0; i < work.objects.size(); ++i) {
      StoredObject* object = work.objects[i];
      if (written) state_->catalog.SetOnDisk(object, work.compressed_bytes[i]);
      state_->catalog.Release(object);  // may be its end
    }
  }
  core_->eraser.EraseFromDisk(orphans).IgnoreError();
  if (pinned) PersistPin(work.manifests[0].number, true).IgnoreError();
  // Last: what was erased may be another publisher's to write.
  absl::MutexLock lock(&state_->mu);
  state_->flight.Release(claims);
}

}  // namespace hearth
