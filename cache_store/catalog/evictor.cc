#include "cache_store/catalog/evictor.h"

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

using Answer = Retention::Answer;

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
    return (demotable ? object->host_names : object->names).count == 1;
  });
}

// One that shares all it has costs nothing to keep, and going would free nothing.
bool FreesDisk(const RestorePointEntry& point) {
  if (point.sessions > 0 || point.pinned) return false;
  return std::any_of(point.objects.begin(), point.objects.end(), [](const StoredObject* object) {
    return object->on_disk && object->sessions == 0 && object->names.count == 1;
  });
}

// Its leaving takes nothing that its tenant is guaranteed against `tenant`.
bool MayLeaveFor(const RestorePointEntry& point, const std::string& tenant) {
  if (point.account->quota.floor_bytes == 0 || point.tenant == tenant) return true;
  uint64_t bytes = 0;
  for (const StoredObject* object : point.objects) {
    if (object->names.count == 1) bytes += object->bytes();
  }
  return TenantLedger::IsAboveFloor(*point.account, bytes);
}

}  // namespace

bool Evictor::ReserveHost(uint64_t bytes, const std::string& tenant) {
  const bool fits = sums_->host_bytes() + bytes <= limits_.host_bytes;
  if (!fits && !HostRoomIsPossible(bytes, tenant)) return false;
  while (sums_->host_bytes() > limits_.host_bytes - bytes) {
    if (!EvictOneForHost(tenant)) return false;
  }
  sums_->ReserveHost(bytes);
  assert(sums_->host_bytes() <= limits_.host_bytes);
  return true;
}

bool Evictor::ReserveHostByDemoting(uint64_t bytes) {
  if (!MayDemoteFor(bytes)) return false;
  while (sums_->host_bytes() > limits_.host_bytes - bytes) {
    if (!DemoteOne()) return false;
  }
  sums_->ReserveHost(bytes);
  return true;
}

bool Evictor::ReserveDisk(uint64_t bytes, const std::string& tenant) {
  const bool fits = sums_->disk_bytes() + bytes <= limits_.disk_bytes;
  if (!fits && !DiskRoomIsPossible(bytes, tenant)) return false;
  while (sums_->disk_bytes() > limits_.disk_bytes - bytes) {
    if (!EvictOneForDisk(tenant)) return false;
  }
  sums_->ReserveDisk(bytes);
  assert(sums_->disk_bytes() <= limits_.disk_bytes);
  return true;
}

// A publish that cannot fit must not empty the store before it is refused. Reservations, held and
// pinned objects and others' guarantees stay in any case.
bool Evictor::HostRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  uint64_t needed = bytes + sums_->host_kept_bytes();
  if (limits_.disk_bytes == 0) needed += objects_->ledger().GuaranteedBytes(tenant);
  return needed <= limits_.host_bytes;
}

bool Evictor::MayDemoteFor(uint64_t bytes) const {
  return bytes + sums_->host_fixed_bytes() <= limits_.host_bytes;
}

bool Evictor::DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  return bytes + sums_->disk_kept_bytes() + objects_->ledger().GuaranteedBytes(tenant) <=
         limits_.disk_bytes;
}

bool Evictor::DemoteOne() {
  const RestorePointEntry* chosen =
      catalog_->feed().Visit(Retention::Scope::kHost, [](const RestorePointEntry* point) {
        return IsWholeOnDisk(*point) && FreesHost(*point) ? Answer::kTake : Answer::kNext;
      });
  if (chosen != nullptr) catalog_->Demote(chosen);
  return chosen != nullptr;
}

bool Evictor::EvictOneForHost(const std::string& tenant) {
  const auto take = [&](const RestorePointEntry* point) {
    if (!FreesHost(*point)) return Answer::kNext;
    // Where the least worth of a tenant may not leave, none of it does.
    if (!IsWholeOnDisk(*point) && !MayLeaveFor(*point, tenant)) return Answer::kNextOwner;
    return Answer::kTake;
  };
  const RestorePointEntry* chosen = catalog_->feed().Visit(Retention::Scope::kHost, take);
  // Then what is partly in RAM only, and so not resident: a publish that RAM had no room for.
  if (chosen == nullptr) chosen = catalog_->feed().Visit(Retention::Scope::kStore, take);
  if (chosen == nullptr) return false;
  if (IsWholeOnDisk(*chosen)) {
    catalog_->Demote(chosen);
  } else {
    catalog_->Remove(chosen, Removal::kHostFull);
  }
  return true;
}

bool Evictor::EvictOneForDisk(const std::string& tenant) {
  const RestorePointEntry* chosen =
      catalog_->feed().Visit(Retention::Scope::kStore, [&](const RestorePointEntry* point) {
        if (!FreesDisk(*point)) return Answer::kNext;
        return MayLeaveFor(*point, tenant) ? Answer::kTake : Answer::kNextOwner;
      });
  if (chosen != nullptr) catalog_->Remove(chosen, Removal::kDiskFull);
  return chosen != nullptr;
}

bool Evictor::Promise(const std::string& tenant, const std::vector<const StoredObject*>& objects) {
  if (objects.empty()) return true;
  TenantAccount* const account = objects_->ledger().AccountOf(tenant);
  for (const StoredObject* object : objects) objects_->Promise(object, account);
  bool fits = TenantLedger::IsWithin(*account);
  if (!fits && !catalog_->is_adopting() && TenantLedger::CanBeWithin(*account)) {
    while (!TenantLedger::IsWithin(*account) && EvictOneOf(*account)) {
    }
    fits = TenantLedger::IsWithin(*account);
  }
  if (!fits) objects_->Unpromise(objects);
  return fits;
}

bool Evictor::EvictOneOf(const TenantAccount& account) {
  const RestorePointEntry* chosen =
      catalog_->feed().VisitOwned(account.owner, [](const RestorePointEntry* point) {
        return point->pinned || point->sessions > 0 ? Answer::kNext : Answer::kTake;
      });
  if (chosen != nullptr) catalog_->Remove(chosen, Removal::kQuota);
  return chosen != nullptr;
}

bool Evictor::IsWorthWriting(const RestorePointEntry& point) const {
  uint64_t bytes = point.manifest_cost_bytes;
  for (const StoredObject* object : point.objects) {
    if (!object->on_disk) bytes += object->disk_cost_bytes();
  }
  if (sums_->disk_bytes() + bytes <= limits_.disk_bytes) return true;
  return !catalog_->feed().IsLeastWorth(point);
}

}  // namespace hearth
