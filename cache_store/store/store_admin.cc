// Listing, pinning, dropping, counting, watching: what operators ask of a store.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/base/pin_share.h"
#include "cache_store/store/sessions.h"
#include "cache_store/store/unloaded_index.h"

namespace hearth {
namespace {

constexpr size_t kShownTokens = 8;

}  // namespace

RestorePoint Store::Describe(const RestorePointEntry& point) const {
  RestorePoint described;
  described.id = point.id;
  described.fingerprint = point.model->fingerprint.digest();
  described.tenant = point.tenant;
  described.tokens = point.tokens();
  described.bytes = point.bytes();
  described.tier = IsOnDevice(point.objects) ? Tier::kGpu : point.slowest_tier();
  described.durable = point.durable;
  described.pinned = point.pinned;
  described.age = std::max(absl::ZeroDuration(), clock_->Now() - point.last_use);
  described.expires_in = std::max(absl::ZeroDuration(), point.expires - clock_->Now());
  described.hits = point.hits;
  std::vector<uint32_t>& last = described.last_token_ids;
  for (const SegmentNode* node = point.node; node != nullptr && last.size() < kShownTokens;
       node = node->parent) {
    const size_t count = std::min(node->token_ids.size(), kShownTokens - last.size());
    last.insert(last.begin(), node->token_ids.end() - static_cast<ptrdiff_t>(count),
                node->token_ids.end());
  }
  return described;
}

void Store::OnRemoved(const RestorePointEntry& point, Removal why) {
  const absl::Time now = clock_->Now();
  history_.Record(point.id, why, now);
  for (const StoredObject* object : point.objects) {
    if (object->restore_points == 1) history_.Record(object->key, why, now);
  }
  ++removed_[static_cast<size_t>(why)];
  StoreEvent::Kind kind = StoreEvent::Kind::kEvicted;
  if (IsEviction(why)) counters_.Add(Counter::kEvicted);
  if (why == Removal::kDropped) {
    counters_.Add(Counter::kDropped);
    kind = StoreEvent::Kind::kDropped;
  }
  if (why == Removal::kQuarantined) kind = StoreEvent::Kind::kQuarantined;
  events_.Post(kind, Describe(point), why);
}

// Another tenant's restore point is as absent as one that never was.
RestorePointEntry* Store::FindOwned(const Digest& id, const std::string& tenant) {
  RestorePointEntry* point = catalog_.Find(id);
  if (point == nullptr || point->tenant != tenant) return nullptr;
  return Catalog::IsOver(*point, clock_->Now()) ? nullptr : point;
}

void Store::Observe(const Fingerprint& fingerprint, const std::string& tenant) {
  absl::MutexLock lock(&mu_);
  fingerprints_.Learn(fingerprint, tenant);
}

absl::StatusOr<RestorePoint> Store::SetPinned(const Digest& id, const std::string& tenant,
                                              bool pinned) {
  if (absl::Status status = WaitUntilLoaded(); !status.ok()) return status;
  RestorePoint described;
  uint64_t durable_number = 0;
  {
    absl::MutexLock lock(&mu_);
    // Before the claim: nobody waits for, or holds up, what another tenant's caller does.
    if (FindOwned(id, tenant) == nullptr) return absl::NotFoundError("no such restore point");
    // Pins of one point reach the disk in the order in which they were asked for, and never beside
    // the write that makes the point durable.
    flight_.Claim(&mu_, {id});
    const absl::Status status = PinLocked(id, tenant, pinned, &described, &durable_number);
    if (!status.ok() || durable_number == 0) flight_.Release({id});
    if (!status.ok()) return status;
  }
  if (durable_number == 0) return described;
  absl::Status status = PersistPin(durable_number, pinned);
  bool gone = false;
  {
    absl::MutexLock lock(&mu_);
    RestorePointEntry* point = catalog_.Find(id);
    gone = point == nullptr || point->manifest != durable_number;
    if (!status.ok() && !gone) {
      catalog_.SetPinned(point, !pinned);
      events_.Post(pinned ? StoreEvent::Kind::kUnpinned : StoreEvent::Kind::kPinned,
                   Describe(*point));
    }
  }
  // A drop in between may have erased the pin before it was written.
  if (gone && pinned) status = PersistPin(durable_number, false);
  absl::MutexLock lock(&mu_);
  flight_.Release({id});
  if (!status.ok()) return status;
  return described;
}

absl::Status Store::PinLocked(const Digest& id, const std::string& tenant, bool pinned,
                              RestorePoint* described, uint64_t* durable_number) {
  RestorePointEntry* point = FindOwned(id, tenant);
  if (point == nullptr) return absl::NotFoundError("no such restore point");
  if (point->pinned != pinned) {
    if (pinned) {
      const absl::Status status = MayPin(
          options_.quotas, catalog_.ledger(),
          PinRoomOf(options_.quotas, options_.capacity_bytes(), options_.max_pinned_fraction),
          catalog_.pinned_bytes(), tenant, catalog_.BytesToPin(*point));
      if (!status.ok()) return status;
    }
    catalog_.SetPinned(point, pinned);
    if (point->durable) *durable_number = point->manifest;
    events_.Post(pinned ? StoreEvent::Kind::kPinned : StoreEvent::Kind::kUnpinned,
                 Describe(*point));
  }
  *described = Describe(*point);
  return absl::OkStatus();
}

absl::Status Store::PersistPin(uint64_t number, bool pinned) {
  return disk_->SetPinned(number, pinned);
}

absl::StatusOr<DropResult> Store::Drop(const Digest& id, const std::string& tenant, bool force) {
  if (absl::Status status = WaitUntilLoaded(); !status.ok()) return status;
  DropResult result;
  {
    absl::MutexLock lock(&mu_);
    RestorePointEntry* point = FindOwned(id, tenant);
    if (point == nullptr) return absl::NotFoundError("no such restore point");
    result = DropPoints({point}, force);
    SettleHost();
  }
  if (absl::Status status = SettleDisk(); !status.ok()) return status;
  return result;
}

absl::StatusOr<DropResult> Store::DropAll(const std::string& tenant, bool force) {
  if (absl::Status status = WaitUntilLoaded(); !status.ok()) return status;
  DropResult result;
  {
    absl::MutexLock lock(&mu_);
    result = DropPoints(catalog_.PointsOf(tenant), force);
    SettleHost();
  }
  if (absl::Status status = SettleDisk(); !status.ok()) return status;
  return result;
}

DropResult Store::DropPoints(const std::vector<RestorePointEntry*>& points, bool force) {
  DropResult result;
  const uint64_t before = catalog_.object_bytes();
  for (RestorePointEntry* point : points) {
    if (point->pinned && !force) {
      ++result.kept_pinned;
      continue;
    }
    catalog_.Remove(point, Removal::kDropped);
    ++result.dropped;
  }
  result.freed_bytes = before - catalog_.object_bytes();
  return result;
}

std::vector<RestorePoint> Store::List(const std::string& tenant) {
  ExpireByTheWay();
  absl::MutexLock lock(&mu_);
  std::vector<RestorePoint> listed;
  for (const RestorePointEntry* point : catalog_.PointsOf(tenant)) {
    listed.push_back(Describe(*point));
  }
  std::reverse(listed.begin(), listed.end());  // most recently used first
  return listed;
}

std::vector<RestorePoint> Store::Hottest(size_t limit) {
  absl::MutexLock lock(&mu_);
  std::vector<RestorePoint> hottest;
  for (const RestorePointEntry* point : catalog_.MostHit(limit))
    hottest.push_back(Describe(*point));
  return hottest;
}

std::vector<LatencySeries> Store::Latencies() const {
  std::vector<LatencySeries> series = {{"lookup", "", "", lookup_seconds_.Read()}};
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kDisk && disk_ == nullptr) continue;
    series.push_back(
        {"slice_read", "tier", TierName(tier), read_seconds_[static_cast<size_t>(tier)].Read()});
  }
  for (const Tier tier : {Tier::kGpu, Tier::kHost, Tier::kDisk}) {
    if ((tier == Tier::kDisk && disk_ == nullptr) || (tier == Tier::kGpu && device_ == nullptr)) {
      continue;
    }
    series.push_back(
        {"fetch", "tier", TierName(tier), fetch_seconds_[static_cast<size_t>(tier)].Read()});
  }
  for (const Durability level : {Durability::kMemory, Durability::kDisk, Durability::kSync}) {
    series.push_back({"publish_commit", "durability", DurabilityName(level),
                      commit_seconds_[static_cast<size_t>(level)].Read()});
  }
  return series;
}

TenantFigures Store::StatsOf(const std::string& tenant) {
  absl::MutexLock lock(&mu_);
  return {catalog_.ledger().UsageOf(tenant), catalog_.ledger().QuotaOf(tenant)};
}

StoreStats Store::Stats() {
  StoreStats stats;
  stats.incarnation = incarnation_;
  stats.counters = counters_.Snapshot();
  stats.latencies = Latencies();
  stats.staged_bytes = staged_.bytes();
  stats.most_staged_bytes = staged_.most_bytes();
  if (arena_ != nullptr) {
    const HostArena::Usage memory = arena_->usage();
    stats.resident_bytes = memory.resident_bytes;
    stats.counters["host_growths_failed"] = memory.failed_growths;
  }
  absl::MutexLock lock(&mu_);
  if (unloaded_ != nullptr) stats.unloaded_restore_points = unloaded_->left();
  // Not 0 before changes are taken.
  stats.counters["unloaded_restore_points"] =
      unloaded_ == nullptr ? 0 : std::max<uint64_t>(1, unloaded_->left());
  stats.counters["demoted_restore_points"] = catalog_.demoted();
  const DeviceTier::Usage device = device_ == nullptr ? DeviceTier::Usage() : device_->usage();
  stats.counters["gpu_evicted_objects"] = device.evicted_objects;
  stats.counters["last_full_scrub_unix_s"] = static_cast<uint64_t>(last_scrub_unix_s_.load());
  TierUsage host;
  host.tier = Tier::kHost;
  host.bytes = host_.bytes();
  host.capacity_bytes = host_.capacity_bytes();
  host.objects = host_.objects();
  host.evicted_restore_points = catalog_.demoted();
  host.hit_tokens = hit_tokens_[static_cast<size_t>(Tier::kHost)];
  host.read_bytes = counters_.Get(Counter::kBytesReadHost);
  host.written_bytes = catalog_.host_flow().written_bytes;
  host.unread_bytes = catalog_.host_flow().unread_bytes;
  if (disk_ == nullptr) host.evicted_restore_points = catalog_.evicted();
  stats.tiers.push_back(host);
  if (disk_ != nullptr) {
    TierUsage disk;
    disk.tier = Tier::kDisk;
    disk.bytes = catalog_.disk_bytes();
    disk.capacity_bytes = options_.disk_bytes;
    disk.objects = catalog_.disk_objects();
    disk.evicted_restore_points = catalog_.evicted();
    disk.hit_tokens = hit_tokens_[static_cast<size_t>(Tier::kDisk)];
    disk.read_bytes = counters_.Get(Counter::kBytesReadDisk);
    disk.written_bytes = catalog_.disk_flow().written_bytes;
    disk.unread_bytes = catalog_.disk_flow().unread_bytes;
    stats.tiers.push_back(disk);
  }
  if (device_ != nullptr) {
    TierUsage gpu;
    gpu.tier = Tier::kGpu;
    gpu.bytes = device.bytes;
    gpu.capacity_bytes = device.capacity_bytes;
    gpu.objects = device.objects.size();
    gpu.hit_tokens = hit_tokens_[static_cast<size_t>(Tier::kGpu)];
    gpu.read_bytes = counters_.Get(Counter::kBytesReadGpu);
    gpu.written_bytes = device.written_bytes;
    gpu.unread_bytes = device.unread_bytes;
    stats.tiers.push_back(gpu);
  }
  stats.restore_points = catalog_.restore_points();
  stats.objects = catalog_.objects();
  stats.pinned_bytes = catalog_.pinned_bytes();
  for (size_t i = 0; i < kRemovals; ++i) {
    stats.removed[RemovalName(static_cast<Removal>(i))] = removed_[i];
  }
  return stats;
}

WatchStart Store::Subscribe(const std::string& tenant, const WatchFrom& from,
                            EventCallback callback) {
  const bool known = from.incarnation == incarnation_;
  // Events are posted under this lock: what is listed is the state after `start.sequence`.
  absl::MutexLock lock(&mu_);
  WatchStart start = events_.Subscribe(
      tenant, known ? std::optional<uint64_t>(from.sequence) : std::nullopt, std::move(callback));
  if (start.resumed || !from.snapshot) return start;
  for (const RestorePointEntry* point : catalog_.PointsOf(tenant)) {
    start.snapshot.push_back(Describe(*point));
  }
  return start;
}

// Of a damaged folder nothing is erased: what the start gave up is in it, and what it has not read
// yet may be lost with a table. Where all was put right neither is so, once every restore point was
// looked at.
absl::Status Store::CheckIsWhole() const {
  const bool is_loading = is_loading_.load();  // what it counts is counted before it ends
  const bool has_lost = counters_.Get(Counter::kRecoveryLostRestorePoints) > 0;
  // What a quarantine took is not what the start gave up.
  const bool has_given_up =
      counters_.Get(Counter::kRecoveryDroppedManifests) > retired_unloaded_.load() ||
      counters_.Get(Counter::kRecoveryUnreadManifests) > 0;
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
  if (disk_ == nullptr) return absl::FailedPreconditionError("no disk tier: nothing to back up");
  if (absl::Status whole = CheckIsWhole(); !whole.ok()) return whole;
  return disk_->BackUp(to);
}

absl::Status Store::Flush(absl::Time deadline) {
  if (!executor_->WaitIdle(deadline)) {
    return absl::DeadlineExceededError("write-behind did not finish in time");
  }
  return disk_ == nullptr ? absl::OkStatus() : disk_->Sync();
}

uint64_t Store::index_finds() {
  absl::MutexLock lock(&mu_);
  return catalog_.index().finds();
}

void Store::CheckInvariants() {
  absl::MutexLock lock(&mu_);
  assert(host_.bytes() <= host_.capacity_bytes());
  assert(catalog_.host_bytes() <= catalog_.limits().host_bytes);
  // Evictions that a crash of the machine undid come back, and go again once all is loaded.
  assert(unloaded_ != nullptr || catalog_.disk_bytes() <= catalog_.limits().disk_bytes);
  catalog_.CheckInvariants();
  if (device_ == nullptr) return;
  const DeviceTier::Usage usage = device_->usage();
  assert(usage.bytes <= options_.device->size_bytes());
  for (const uint64_t number : usage.objects) {
    const StoredObject* object = catalog_.FindObject(number);
    assert(object != nullptr && !object->retired);
    (void)object;
  }
}

}  // namespace hearth
