// Moving what is in RAM to the disk, and carrying out what the catalog let go.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/disk/slice_codec.h"
#include "cache_store/store/sessions.h"

namespace hearth {
namespace {

// Erased values stay in files until these are rewritten or found empty. At most 1/16 of the limit,
// or 1 GiB of a large one, is dead before the disk is asked to give it back.
constexpr uint64_t kReclaimDivisor = 16;
constexpr uint64_t kReclaimBytes = uint64_t{1} << 30;
// What is dead in files that also hold something live may take an eighth of the limit on top of it:
// the less, the more live bytes are moved for each byte gained.
constexpr uint64_t kDeadDivisor = 8;

}  // namespace

Store::Unsettled Store::SettleHost() { return Settle(catalog_.TakeGarbage()); }

Store::Unsettled Store::Settle(const Garbage& garbage) {
  if (!garbage.host_objects.empty()) {
    if (!host_slices_->EraseObjects(garbage.host_objects).ok()) {
      counters_.Add(Counter::kTierErrors);
    }
  }
  if (device_ != nullptr) device_->Erase(garbage.gone_objects);
  erasures_.AddManifests(garbage.manifests);
  erasures_.AddObjects(garbage.disk_objects, garbage.disk_bytes);
  return {!garbage.host_objects.empty(),
          !garbage.manifests.empty() || !garbage.disk_objects.empty()};
}

absl::Status Store::SettleDisk(absl::Span<const uint64_t> in_vain) {
  host_.Reap();
  if (disk_ == nullptr) return absl::OkStatus();
  uint64_t erased_bytes = 0;
  const absl::Status status = EraseFromDisk(in_vain, &erased_bytes);
  ReclaimLater(erased_bytes);
  // What could not be erased is tried again with the next, and when the store closes.
  if (!status.ok()) counters_.Add(Counter::kTierErrors);
  return status;
}

absl::Status Store::EraseFromDisk(absl::Span<const uint64_t> in_vain, uint64_t* erased_bytes) {
  Erasures::Objects objects;
  // Manifests first: a crash in between leaves objects that nothing names, never the reverse.
  while (true) {
    std::vector<uint64_t> manifests;
    {
      absl::MutexLock lock(&mu_);
      manifests = erasures_.SomeManifests();
      if (manifests.empty()) {
        objects = erasures_.TakeObjects();
        break;
      }
    }
    if (absl::Status status = disk_->EraseManifests(manifests); !status.ok()) return status;
    absl::MutexLock lock(&mu_);
    erasures_.ManifestsErased(manifests);
  }
  absl::Status status;
  if (!in_vain.empty()) status = disk_slices_->EraseObjects(in_vain);
  const absl::Span<const uint64_t> numbers(objects.numbers);
  for (size_t i = 0; status.ok() && i < numbers.size(); i += Erasures::kMostAtOnce) {
    status = disk_slices_->EraseObjects(numbers.subspan(i, Erasures::kMostAtOnce));
  }
  if (status.ok()) {
    *erased_bytes = objects.bytes;
    return status;
  }
  absl::MutexLock lock(&mu_);
  erasures_.AddObjects(numbers, objects.bytes);
  return status;
}

void Store::ReclaimLater(uint64_t erased_bytes) {
  if (erased_bytes == 0) return;
  {
    absl::MutexLock lock(&mu_);
    unreclaimed_bytes_ += erased_bytes;
    const uint64_t worthwhile = std::min(options_.disk_bytes / kReclaimDivisor, kReclaimBytes);
    if (unreclaimed_bytes_ < worthwhile || reclaim_queued_) return;
    reclaim_queued_ = true;
  }
  Executor* const executor = reclaimer_ != nullptr ? reclaimer_.get() : executor_.get();
  if (executor->TrySchedule(0, [this] { Reclaim(); })) return;
  absl::MutexLock lock(&mu_);
  reclaim_queued_ = false;
}

void Store::Reclaim() {
  {
    absl::MutexLock lock(&mu_);
    reclaim_queued_ = false;
    unreclaimed_bytes_ = 0;
  }
  const absl::Status status =
      disk_->ReclaimSpace(options_.disk_bytes + options_.disk_bytes / kDeadDivisor);
  if (!status.ok() && !absl::IsCancelled(status)) counters_.Add(Counter::kTierErrors);
}

void Store::SettleLater(const Unsettled& left) {
  if (left.in_host) host_.Reap();  // RAM is not to wait behind the disk
  if (!left.on_disk) return;
  if (!executor_->TrySchedule(0, [this] { SettleDisk().IgnoreError(); })) {
    SettleDisk().IgnoreError();
  }
}

uint64_t Store::Compress(const Fingerprint& fingerprint, std::vector<SliceView>* views) {
  if (options_.disk_compression == DiskCompression::kNone) return 0;
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
  counters_.Add(Counter::kCompressedFromBytes, before);
  counters_.Add(Counter::kCompressedToBytes, after);
  return after;
}

absl::Status Store::Write(Persisting* work, bool sync) {
  assert(disk_ != nullptr && work->objects.size() == work->views.size());
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
    if (absl::Status status = disk_->WriteObject(record); !status.ok()) return status;
    for (size_t slice = 0; slice < object.layers.size(); ++slice) {
      slices.push_back({object.Slice(slice), work->views[i][slice]});
    }
  }
  if (absl::Status status = disk_slices_->WriteAll(slices); !status.ok()) return status;
  if (!work->manifests.empty()) {
    work->begun_manifests = true;
    return disk_->CommitManifests(work->manifests, work->points, work->fingerprint, sync);
  }
  return sync ? disk_->Sync() : absl::OkStatus();
}

std::vector<uint64_t> Store::Forsake(const Persisting& work) {
  std::vector<uint64_t> in_vain;
  for (size_t i = 0; i < work.begun_objects; ++i) {
    work.objects[i]->begun_on_disk = true;
    in_vain.push_back(work.objects[i]->number);
  }
  if (!work.begun_manifests) return in_vain;
  for (size_t i = 0; i < work.manifests.size(); ++i) {
    const uint64_t number = work.manifests[i].number;
    erasures_.AddManifests({number});
    // The erase may have to wait: what the point is written as next is not to be hit by it.
    RestorePointEntry* point = catalog_.Find(work.points[i]);
    if (point != nullptr && point->manifest == number) point->manifest = catalog_.NextNumber();
  }
  return in_vain;
}

bool Store::HostViews(const StoredObject* object, std::vector<SliceView>* views) {
  for (size_t i = 0; i < object->layers.size(); ++i) {
    absl::StatusOr<std::optional<SliceView>> view = host_slices_->Read(object->Slice(i));
    if (!view.ok() || !view->has_value()) return false;
    views->push_back(**std::move(view));
  }
  return true;
}

void Store::ScheduleWriteBehind(std::vector<Digest> points, uint64_t bytes) {
  if (is_loading_.load()) {
    absl::MutexLock lock(&mu_);
    if (unloaded_ != nullptr) {
      implicit_points_.insert(implicit_points_.end(), points.begin(), points.end());
      return;
    }
  }
  const auto job = [this, points = std::move(points)] {
    for (const Digest& id : points) WriteBehind(id);
  };
  if (!executor_->TrySchedule(bytes, job)) counters_.Add(Counter::kWriteBehindSkipped);
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
  for (StoredObject* object : work->objects) catalog_.Hold(object);
  catalog_.HoldPoint(point);
  const bool reserved = catalog_.ReserveDisk(bytes, point->tenant);
  if (reserved) work->reserved_bytes = bytes;
  catalog_.ReleasePoint(point);
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
    absl::MutexLock lock(&mu_);
    if (RestorePointEntry* point = catalog_.Find(id); point != nullptr) {
      for (const StoredObject* object : point->objects) {
        if (!object->on_disk) claims.push_back(object->key);
      }
    }
    flight_.Claim(&mu_, claims);
    RestorePointEntry* point = catalog_.Find(id);
    bool unclaimed = false;  // the point came, or came anew, while this waited
    if (point != nullptr) {
      for (const StoredObject* object : point->objects) {
        unclaimed |= !object->on_disk &&
                     std::find(claims.begin(), claims.end(), object->key) == claims.end();
      }
    }
    if (point == nullptr || point->durable || unclaimed) {
      if (unclaimed) counters_.Add(Counter::kWriteBehindSkipped);
      flight_.Release(claims);
      return;
    }
    if (!catalog_.IsWorthWriting(*point)) {
      counters_.Add(Counter::kWriteBehindSkipped);
      flight_.Release(claims);
      return;
    }
    ready = PreparePersist(point, &work);
    SettleHost();
  }
  SettleDisk().IgnoreError();
  // RAM reads verify digests, so they are done without the lock; references keep the copies.
  for (const StoredObject* object : work.objects) {
    ready = ready && HostViews(object, &work.views.emplace_back());
  }
  const bool written = ready && Write(&work, false).ok();
  if (!written) counters_.Add(Counter::kWriteBehindFailed);
  std::vector<uint64_t> in_vain;
  bool pinned = false;
  {
    absl::MutexLock lock(&mu_);
    catalog_.UnreserveDisk(work.reserved_bytes);
    RestorePointEntry* point = catalog_.Find(id);
    const bool present = point != nullptr && point->manifest == work.manifests[0].number;
    if (written && present) {
      catalog_.SetDurable(point);
      events_.Post(StoreEvent::Kind::kDurable, Describe(*point));
      pinned = point->pinned;
    } else if (written) {
      catalog_.DiscardManifest(work.manifests[0].number);
    } else {
      in_vain = Forsake(work);
    }
    for (size_t i = 0; i < work.objects.size(); ++i) {
      StoredObject* object = work.objects[i];
      if (written) catalog_.SetOnDisk(object, work.compressed_bytes[i]);
      catalog_.Release(object);  // may be its end
    }
    SettleHost();
  }
  SettleDisk(in_vain).IgnoreError();
  if (pinned) PersistPin(work.manifests[0].number, true).IgnoreError();
  // Last: what was erased may be another publisher's to write.
  absl::MutexLock lock(&mu_);
  flight_.Release(claims);
}

}  // namespace hearth
