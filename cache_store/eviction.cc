// How the catalog makes room. Both tiers follow one order (retention.h); they differ in what
// leaving means: from RAM, a restore point that is whole on disk is demoted, which loses nothing;
// from the store, it is removed.
#include <algorithm>
#include <cassert>

#include "cache_store/catalog.h"

namespace hearth {

bool Catalog::ReserveHost(uint64_t bytes, const std::string& tenant) {
  if (host_bytes() + bytes > limits_.host_bytes && !HostRoomIsPossible(bytes, tenant)) return false;
  while (host_bytes() > limits_.host_bytes - bytes) {
    if (!EvictOneForHost(tenant)) return false;
  }
  host_reserved_ += bytes;
  return true;
}

bool Catalog::ReserveDisk(uint64_t bytes, const std::string& tenant) {
  if (disk_bytes() + bytes > limits_.disk_bytes && !DiskRoomIsPossible(bytes, tenant)) return false;
  while (disk_bytes() > limits_.disk_bytes - bytes) {
    if (!EvictOneForDisk(tenant)) return false;
  }
  disk_reserved_ += bytes;
  return true;
}

// A publish that cannot fit must not empty the store on its way to being refused. What stays in any
// case: reservations, what sessions hold, what is pinned. Counting that is exact and linear in the
// objects, so it is done only when the running sums cannot already tell.
bool Catalog::HostRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  uint64_t needed = bytes + host_reserved_;
  if (limits_.disk_bytes == 0) needed += ledger_.GuaranteedBytes(tenant);
  if (needed > limits_.host_bytes) return false;
  if (pinned_bytes_ == 0 && needed + held_bytes_ <= limits_.host_bytes) return true;
  const absl::flat_hash_set<const StoredObject*> pinned = PinnedObjects();
  uint64_t kept = 0;
  for (const auto& [number, object] : objects_) {
    if (!object->in_host) continue;
    const bool only_copy = !object->on_disk;
    if (object->sessions > 0 || (only_copy && pinned.contains(object.get()))) {
      kept += object->bytes();
    }
  }
  return needed + kept <= limits_.host_bytes;
}

bool Catalog::DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  const uint64_t needed = bytes + disk_reserved_ + ledger_.GuaranteedBytes(tenant);
  if (needed > limits_.disk_bytes) return false;
  if (pinned_bytes_ == 0 && needed + held_bytes_ <= limits_.disk_bytes) return true;
  const absl::flat_hash_set<const StoredObject*> pinned = PinnedObjects();
  uint64_t kept = 0;
  for (const auto& [number, object] : objects_) {
    if (!object->on_disk) continue;
    if (object->sessions > 0 || pinned.contains(object.get())) kept += object->disk_cost_bytes();
  }
  for (const auto& [id, point] : points_) {
    if (point->durable && (point->pinned || point->sessions > 0)) {
      kept += point->manifest_cost_bytes();
    }
  }
  return needed + kept <= limits_.disk_bytes;
}

absl::flat_hash_set<const StoredObject*> Catalog::PinnedObjects() const {
  absl::flat_hash_set<const StoredObject*> pinned;
  for (const auto& [id, point] : points_) {
    if (point->pinned) pinned.insert(point->objects.begin(), point->objects.end());
  }
  return pinned;
}

void Catalog::UnreserveHost(uint64_t bytes) {
  assert(host_reserved_ >= bytes);
  host_reserved_ -= bytes;
}

void Catalog::UnreserveDisk(uint64_t bytes) {
  assert(disk_reserved_ >= bytes);
  disk_reserved_ -= bytes;
}

namespace {

bool IsWholeOnDisk(const RestorePointEntry& point) {
  return std::all_of(point.objects.begin(), point.objects.end(),
                     [](const StoredObject* object) { return object->on_disk; });
}

// Whether RAM gets room when the point is demoted, or removed where it is not whole on disk.
bool FreesHost(const RestorePointEntry& point) {
  if (point.sessions > 0) return false;
  const bool demotable = IsWholeOnDisk(point);
  if (demotable ? !point.in_host : point.pinned) return false;
  return std::any_of(point.objects.begin(), point.objects.end(), [&](const StoredObject* object) {
    if (!object->in_host || object->sessions > 0) return false;
    return (demotable ? object->host_restore_points : object->restore_points) == 1;
  });
}

// One that shares all it has costs nothing to keep, and going would free nothing.
bool FreesDisk(const RestorePointEntry& point) {
  if (point.sessions > 0 || point.pinned) return false;
  return std::any_of(point.objects.begin(), point.objects.end(), [](const StoredObject* object) {
    return object->on_disk && object->sessions == 0 && object->restore_points == 1;
  });
}

}  // namespace

bool Catalog::EvictOneForHost(const std::string& tenant) {
  RestorePointEntry* chosen = nullptr;
  const auto take = [&](RestorePointEntry* point) {
    if (!FreesHost(*point)) return false;
    if (!IsWholeOnDisk(*point) && !MayLeaveFor(*point, tenant)) return false;
    chosen = point;
    return true;
  };
  VisitLeastWorth(Retention::Room::kHost, take);
  // Then what is partly in RAM only, and so not resident: a publish that RAM had no room for.
  if (chosen == nullptr) VisitLeastWorth(Retention::Room::kStore, take);
  if (chosen == nullptr) return false;
  if (IsWholeOnDisk(*chosen)) {
    Demote(chosen);
  } else {
    Remove(chosen, Removal::kHostFull);
  }
  return true;
}

bool Catalog::EvictOneForDisk(const std::string& tenant) {
  RestorePointEntry* chosen = nullptr;
  VisitLeastWorth(Retention::Room::kStore, [&](RestorePointEntry* point) {
    if (!FreesDisk(*point) || !MayLeaveFor(*point, tenant)) return false;
    chosen = point;
    return true;
  });
  if (chosen == nullptr) return false;
  Remove(chosen, Removal::kDiskFull);
  return true;
}

bool Catalog::MayLeaveFor(const RestorePointEntry& point, const std::string& tenant) const {
  if (point.tenant == tenant) return true;
  uint64_t bytes = 0;
  for (const StoredObject* object : point.objects) {
    if (object->restore_points == 1) bytes += object->bytes();
  }
  return ledger_.IsAboveFloor(point.tenant, bytes);
}

bool Catalog::ReserveQuota(const std::string& tenant, uint64_t bytes, uint64_t objects) {
  if (!ledger_.Fits(tenant, bytes, objects)) {
    if (!QuotaRoomIsPossible(tenant, bytes, objects)) return false;
    while (!ledger_.Fits(tenant, bytes, objects)) {
      if (!EvictOneOf(tenant)) return false;
    }
  }
  ledger_.Reserve(tenant, bytes, objects);
  return true;
}

// What stays in any case: what is pinned, and what sessions hold.
bool Catalog::QuotaRoomIsPossible(const std::string& tenant, uint64_t bytes,
                                  uint64_t objects) const {
  absl::flat_hash_set<const StoredObject*> kept;
  for (const auto& [id, point] : points_) {
    if (point->tenant != tenant) continue;
    const bool stays = point->pinned || point->sessions > 0;
    for (const StoredObject* object : point->objects) {
      if (stays || object->sessions > 0) kept.insert(object);
    }
  }
  TenantUsage usage;
  for (const StoredObject* object : kept) {
    ++usage.objects;
    usage.bytes += object->bytes();
  }
  return ledger_.WouldFit(tenant, usage, bytes, objects);
}

bool Catalog::EvictOneOf(const std::string& tenant) {
  RestorePointEntry* chosen = nullptr;
  VisitLeastWorth(Retention::Room::kStore, [&](RestorePointEntry* point) {
    if (point->tenant != tenant || point->pinned || point->sessions > 0) return false;
    chosen = point;
    return true;
  });
  if (chosen == nullptr) return false;
  Remove(chosen, Removal::kQuota);
  return true;
}

void Catalog::Demote(RestorePointEntry* point) {
  if (!point->in_host) return;
  point->in_host = false;
  ++demoted_;
  for (StoredObject* object : point->objects) {
    CountHostName(object, point, -1);
    if (object->host_restore_points == 0 && object->sessions == 0 && object->on_disk) {
      DropHostCopy(object);
    }
  }
}

}  // namespace hearth
