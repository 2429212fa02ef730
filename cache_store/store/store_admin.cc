// Listing, pinning, dropping, counting, watching: what operators ask of a store.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/base/pin_share.h"
#include "cache_store/store/sessions.h"
#include "cache_store/store/unloaded_index.h"

namespace hearth {
void Store::Observe(const Fingerprint& fingerprint, const std::string& tenant) {
  absl::MutexLock lock(&state_->mu);
  state_->fingerprints.Learn(fingerprint, tenant);
}

absl::StatusOr<RestorePoint> Store::SetPinned(const Digest& id, const std::string& tenant,
                                              bool pinned) {
  if (absl::Status status = WaitUntilLoaded(); !status.ok()) return status;
  RestorePoint described;
  uint64_t durable_number = 0;
  {
    absl::MutexLock lock(&state_->mu);
    // Before the claim: nobody waits for, or holds up, what another tenant's caller does.
    if (core_->FindOwned(id, tenant) == nullptr)
      return absl::NotFoundError("no such restore point");
    // Pins of one point reach the disk in the order in which they were asked for, and never beside
    // the write that makes the point durable.
    state_->flight.Claim(&state_->mu, {id});
    const absl::Status status = PinLocked(id, tenant, pinned, &described, &durable_number);
    if (!status.ok() || durable_number == 0) state_->flight.Release({id});
    if (!status.ok()) return status;
  }
  if (durable_number == 0) return described;
  absl::Status status = PersistPin(durable_number, pinned);
  bool gone = false;
  {
    absl::MutexLock lock(&state_->mu);
    RestorePointEntry* point = state_->catalog.Find(id);
    gone = point == nullptr || point->manifest != durable_number;
    if (!status.ok() && !gone) {
      state_->catalog.SetPinned(point, !pinned);
      core_->events.Post(pinned ? StoreEvent::Kind::kUnpinned : StoreEvent::Kind::kPinned,
                         core_->Describe(*point));
    }
  }
  // A drop in between may have erased the pin before it was written.
  if (gone && pinned) status = PersistPin(durable_number, false);
  absl::MutexLock lock(&state_->mu);
  state_->flight.Release({id});
  if (!status.ok()) return status;
  return described;
}

absl::Status Store::PinLocked(const Digest& id, const std::string& tenant, bool pinned,
                              RestorePoint* described, uint64_t* durable_number) {
  RestorePointEntry* point = core_->FindOwned(id, tenant);
  if (point == nullptr) return absl::NotFoundError("no such restore point");
  if (point->pinned != pinned) {
    if (pinned) {
      const absl::Status status =
          MayPin(core_->options.quotas, state_->catalog.ledger(),
                 PinRoomOf(core_->options.quotas, core_->options.capacity_bytes(),
                           core_->options.max_pinned_fraction),
                 state_->catalog.pinned_bytes(), tenant, state_->catalog.BytesToPin(*point));
      if (!status.ok()) return status;
    }
    state_->catalog.SetPinned(point, pinned);
    if (point->durable) *durable_number = point->manifest;
    core_->events.Post(pinned ? StoreEvent::Kind::kPinned : StoreEvent::Kind::kUnpinned,
                       core_->Describe(*point));
  }
  *described = core_->Describe(*point);
  return absl::OkStatus();
}

absl::Status Store::PersistPin(uint64_t number, bool pinned) {
  return core_->tiers.disk->SetPinned(number, pinned);
}

absl::StatusOr<DropResult> Store::Drop(const Digest& id, const std::string& tenant, bool force) {
  if (absl::Status status = WaitUntilLoaded(); !status.ok()) return status;
  DropResult result;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    RestorePointEntry* point = core_->FindOwned(id, tenant);
    if (point == nullptr) return absl::NotFoundError("no such restore point");
    result = DropPoints({point}, force);
  }
  if (absl::Status status = core_->eraser.EraseFromDisk(); !status.ok()) return status;
  return result;
}

absl::StatusOr<DropResult> Store::DropAll(const std::string& tenant, bool force) {
  if (absl::Status status = WaitUntilLoaded(); !status.ok()) return status;
  DropResult result;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    result = DropPoints(state_->catalog.PointsOf(tenant), force);
  }
  if (absl::Status status = core_->eraser.EraseFromDisk(); !status.ok()) return status;
  return result;
}

DropResult Store::DropPoints(const std::vector<RestorePointEntry*>& points, bool force) {
  DropResult result;
  const uint64_t before = state_->catalog.object_bytes();
  for (RestorePointEntry* point : points) {
    if (point->pinned && !force) {
      ++result.kept_pinned;
      continue;
    }
    state_->catalog.Remove(point, Removal::kDropped);
    ++result.dropped;
  }
  result.freed_bytes = before - state_->catalog.object_bytes();
  return result;
}

std::vector<RestorePoint> Store::List(const std::string& tenant) {
  ExpireByTheWay();
  absl::MutexLock lock(&state_->mu);
  std::vector<RestorePoint> listed;
  for (const RestorePointEntry* point : state_->catalog.PointsOf(tenant)) {
    listed.push_back(core_->Describe(*point));
  }
  std::reverse(listed.begin(), listed.end());  // most recently used first
  return listed;
}

std::vector<RestorePoint> Store::Hottest(size_t limit) {
  absl::MutexLock lock(&state_->mu);
  std::vector<RestorePoint> hottest;
  for (const RestorePointEntry* point : state_->catalog.MostHit(limit))
    hottest.push_back(core_->Describe(*point));
  return hottest;
}

TenantFigures Store::StatsOf(const std::string& tenant) {
  absl::MutexLock lock(&state_->mu);
  return {state_->catalog.ledger().UsageOf(tenant), state_->catalog.ledger().QuotaOf(tenant)};
}

StoreStats Store::Stats() {
  StoreStats stats;
  stats.incarnation = incarnation_;
  stats.counters = core_->meters.counters().Snapshot();
  stats.latencies =
      core_->meters.Latencies(core_->tiers.disk != nullptr, core_->tiers.device != nullptr);
  stats.staged_bytes = staged_.bytes();
  stats.most_staged_bytes = staged_.most_bytes();
  if (core_->tiers.arena != nullptr) {
    const HostArena::Usage memory = core_->tiers.arena->usage();
    stats.resident_bytes = memory.resident_bytes;
    stats.counters["host_growths_failed"] = memory.failed_growths;
  }
  absl::MutexLock lock(&state_->mu);
  if (unloaded_ != nullptr) stats.unloaded_restore_points = unloaded_->left();
  // Not 0 before changes are taken.
  stats.counters["unloaded_restore_points"] =
      unloaded_ == nullptr ? 0 : std::max<uint64_t>(1, unloaded_->left());
  stats.counters["demoted_restore_points"] = state_->catalog.demoted();
  const DeviceTier::Usage device =
      core_->tiers.device == nullptr ? DeviceTier::Usage() : core_->tiers.device->usage();
  stats.counters["gpu_evicted_objects"] = device.evicted_objects;
  stats.counters["last_full_scrub_unix_s"] = static_cast<uint64_t>(last_scrub_unix_s_.load());
  TierUsage host;
  host.tier = Tier::kHost;
  host.bytes = core_->tiers.host.bytes();
  host.capacity_bytes = core_->tiers.host.capacity_bytes();
  host.objects = core_->tiers.host.objects();
  host.evicted_restore_points = state_->catalog.demoted();
  host.hit_tokens = core_->meters.hit_tokens(Tier::kHost);
  host.read_bytes = core_->meters.counters().Get(Counter::kBytesReadHost);
  host.written_bytes = state_->catalog.host_flow().written_bytes;
  host.unread_bytes = state_->catalog.host_flow().unread_bytes;
  if (core_->tiers.disk == nullptr) host.evicted_restore_points = state_->catalog.evicted();
  stats.tiers.push_back(host);
  if (core_->tiers.disk != nullptr) {
    TierUsage disk;
    disk.tier = Tier::kDisk;
    disk.bytes = state_->catalog.disk_bytes();
    disk.capacity_bytes = core_->options.disk_bytes;
    disk.objects = state_->catalog.disk_objects();
    disk.evicted_restore_points = state_->catalog.evicted();
    disk.hit_tokens = core_->meters.hit_tokens(Tier::kDisk);
    disk.read_bytes = core_->meters.counters().Get(Counter::kBytesReadDisk);
    disk.written_bytes = state_->catalog.disk_flow().written_bytes;
    disk.unread_bytes = state_->catalog.disk_flow().unread_bytes;
    stats.tiers.push_back(disk);
  }
  if (core_->tiers.device != nullptr) {
    TierUsage gpu;
    gpu.tier = Tier::kGpu;
    gpu.bytes = device.bytes;
    gpu.capacity_bytes = device.capacity_bytes;
    gpu.objects = device.objects.size();
    gpu.hit_tokens = core_->meters.hit_tokens(Tier::kGpu);
    gpu.read_bytes = core_->meters.counters().Get(Counter::kBytesReadGpu);
    gpu.written_bytes = device.written_bytes;
    gpu.unread_bytes = device.unread_bytes;
    stats.tiers.push_back(gpu);
  }
  stats.restore_points = state_->catalog.restore_points();
  stats.objects = state_->catalog.objects();
  stats.pinned_bytes = state_->catalog.pinned_bytes();
  stats.removed = core_->meters.removed();
  return stats;
}

WatchStart Store::Subscribe(const std::string& tenant, const WatchFrom& from,
                            EventCallback callback) {
  const bool known = from.incarnation == incarnation_;
  // Events are posted under this lock: what is listed is the state after `start.sequence`.
  absl::MutexLock lock(&state_->mu);
  WatchStart start = core_->events.Subscribe(
      tenant, known ? std::optional<uint64_t>(from.sequence) : std::nullopt, std::move(callback));
  if (start.resumed || !from.snapshot) return start;
  for (const RestorePointEntry* point : state_->catalog.PointsOf(tenant)) {
    start.snapshot.push_back(core_->Describe(*point));
  }
  return start;
}

// Of a damaged folder nothing is erased: what the start gave up is in it, and what it has not read
// yet may be lost with a table. Where all was put right neither is so, once every restore point was
// looked at.
absl::Status Store::CheckIsWhole() const {
  const bool is_loading = is_loading_.load();  // what it counts is counted before it ends
  const bool has_lost = core_->meters.counters().Get(Counter::kRecoveryLostRestorePoints) > 0;
  // What a quarantine took is not what the start gave up.
  const bool has_given_up =
      core_->meters.counters().Get(Counter::kRecoveryDroppedManifests) > retired_unloaded_.load() ||
      core_->meters.counters().Get(Counter::kRecoveryUnreadManifests) > 0;
  if (!has_lost && unmended_.empty() && !damage_.empty() && is_loading) {
    return absl::UnavailableError(
        absl::StrCat("no backup was made: ", damage_[0],
                     "; whether all is there is known once the index is loaded: try again then"));
  }
  if (!has_lost && unmended_.empty() && (damage_.empty() || !has_given_up)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "no backup was made: ",
      unmended_.empty() ? "restore points do not match their objects, or could not be read"
                        : unmended_,
      "; this start found it: start the store again, and if that finds it too, repair the folder "
      "(hearthctl repair)"));
}

absl::StatusOr<BackupReport> Store::BackUp(const std::string& to) {
  if (core_->tiers.disk == nullptr)
    return absl::FailedPreconditionError("no disk tier: nothing to back up");
  if (absl::Status whole = CheckIsWhole(); !whole.ok()) return whole;
  return core_->tiers.disk->BackUp(to);
}

absl::Status Store::Flush(absl::Time deadline) {
  if (!core_->executor->WaitIdle(deadline)) {
    return absl::DeadlineExceededError("write-behind did not finish in time");
  }
  return core_->tiers.disk == nullptr ? absl::OkStatus() : core_->tiers.disk->Sync();
}

uint64_t Store::index_finds() {
  absl::MutexLock lock(&state_->mu);
  return state_->catalog.index().finds();
}

void Store::CheckInvariants() {
  absl::MutexLock lock(&state_->mu);
  assert(core_->tiers.host.bytes() <= core_->tiers.host.capacity_bytes());
  assert(state_->catalog.host_bytes() <= state_->catalog.limits().host_bytes);
  // Evictions that a crash of the machine undid come back, and go again once all is loaded.
  assert(unloaded_ != nullptr ||
         state_->catalog.disk_bytes() <= state_->catalog.limits().disk_bytes);
  state_->catalog.CheckInvariants();
  if (core_->tiers.device == nullptr) return;
  const DeviceTier::Usage usage = core_->tiers.device->usage();
  assert(usage.bytes <= core_->options.device->size_bytes());
  for (const uint64_t number : usage.objects) {
    const StoredObject* object = state_->catalog.FindObject(number);
    assert(object != nullptr && !object->retired);
    (void)object;
  }
}

}  // namespace hearth
