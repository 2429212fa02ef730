#include "cache_store/catalog/evictor.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace hearth {
namespace {

using Answer = Retention::Answer;

// Store with a disk: to free RAM, the evictor examines this many restore points, least valuable
// first, for points with objects that are only in RAM. If it finds none, the new publish is written
// to disk instead of RAM.
constexpr int kMaxExamined = 1024;

bool MayLeave(const RestorePointEntry& point) { return point.sessions == 0 && !point.pinned; }

// Returns whether removing the restore point frees RAM.
bool FreesHost(const RestorePointEntry& point) {
  return std::any_of(point.objects.begin(), point.objects.end(), [](StoredObject* object) {
    return object->in_host() && object->sessions == 0 && object->names == 1;
  });
}

// Returns whether the tenant that owns the restore point keeps its guaranteed bytes if the point is
// evicted for `tenant`.
bool MayLeaveFor(const RestorePointEntry& point, const std::string& tenant) {
  if (point.account->quota.floor_bytes == 0 || point.tenant() == tenant) return true;
  uint64_t bytes = 0;
  for (StoredObject* object : point.objects) {
    if (object->names == 1) bytes += object->bytes();
  }
  return TenantAccounts::IsAboveFloor(*point.account, bytes);
}

}  // namespace

bool Evictor::ReserveHost(uint64_t bytes, const std::string& tenant) {
  const bool fits = sums_->host_bytes() + bytes <= HostLimitBytes();
  // With a disk, a restore point is evicted to free RAM only if its objects are not on disk.
  const uint64_t points = limits_.disk_bytes == 0 ? KeptPointBytes() : PointBytes();
  if (!fits && !HostRoomIsPossible(bytes, points, tenant)) return false;
  DropSpareCopiesFor(bytes);
  while (sums_->host_bytes() + bytes > HostLimitBytes()) {
    if (!EvictOneForHost(tenant)) return false;
  }
  sums_->ReserveHost(bytes);
  assert(sums_->host_bytes() <= limits_.host_bytes);
  return true;
}

// Dropping a copy also frees bookkeeping, so the limit of the KV rises slightly during the loop.
void Evictor::DropSpareCopiesFor(uint64_t bytes) {
  const uint64_t limit = HostLimitBytes();
  objects_->DropSpareCopies(limit - std::min(limit, bytes));
}

uint64_t Evictor::PointBytes() const {
  return limits_.point_bytes == 0 ? 0 : catalog_->cost_bytes() + sums_->points_reserved();
}

uint64_t Evictor::KeptPointBytes() const {
  const uint64_t bytes = PointBytes();
  return bytes - std::min(bytes, sums_->evictable_point_bytes());
}

uint64_t Evictor::CopyBytes() const {
  return limits_.point_bytes == 0 ? 0 : objects_->copy_cost_bytes();
}

uint64_t Evictor::HostLimitBytes() const {
  return limits_.host_bytes - std::min(limits_.host_bytes, PointBytes() + CopyBytes());
}

uint64_t Evictor::HostCopyCostBytes(const StoredObject& object) const {
  return limits_.point_bytes == 0 ? 0 : StoredObject::HostCopyCostBytes(object.layers().size());
}

bool Evictor::ReservePoints(uint64_t bytes, const std::string& tenant) {
  if (limits_.point_bytes > 0) {
    if (!PointRoomIsPossible(bytes, tenant)) return false;
    while (PointBytes() + bytes > limits_.point_bytes) {
      if (!EvictOneForPoints(tenant)) return false;
    }
  }
  sums_->ReservePoints(bytes);
  if (sums_->host_bytes() <= HostLimitBytes()) return true;
  if (ReserveHost(0, tenant)) return true;
  sums_->UnreservePoints(bytes);
  return false;
}

bool Evictor::EvictOneForPoints(const std::string& tenant) {
  const auto take = [&](RestorePointEntry* point) {
    if (!MayLeave(*point)) return Answer::kNext;
    return MayLeaveFor(*point, tenant) ? Answer::kTake : Answer::kNextOwner;
  };
  RestorePointEntry* chosen = nullptr;
  const auto own = catalog_->points_of_tenants().find(tenant);
  const size_t tenants = catalog_->points_of_tenants().size();
  if (own != catalog_->points_of_tenants().end() &&
      own->second.size() * tenants >= catalog_->size()) {
    const TenantAccount& account = *(*own->second.begin())->account;
    chosen = catalog_->feed().VisitOwned(account.owner, take);
  }
  if (chosen == nullptr) chosen = catalog_->feed().Visit(take);
  if (chosen != nullptr) catalog_->Remove(chosen, Removal::kHostFull);
  return chosen != nullptr;
}

bool Evictor::ReserveHostByDemoting(uint64_t bytes) {
  if (!MayDemoteFor(bytes)) return false;
  DropSpareCopiesFor(bytes);
  if (sums_->host_bytes() + bytes > HostLimitBytes()) return false;
  sums_->ReserveHost(bytes);
  return true;
}

bool Evictor::ReserveDisk(uint64_t bytes, const std::string& tenant) {
  if (!FitsOnDisk(bytes) && !DiskRoomIsPossible(bytes, tenant)) return false;
  while (sums_->disk_bytes() > limits_.disk_bytes - bytes) {
    if (!EvictOneForDisk(tenant)) return false;
  }
  sums_->ReserveDisk(bytes);
  assert(sums_->disk_bytes() <= limits_.disk_bytes);
  return true;
}

bool Evictor::TrimDisk(int most) {
  for (; most > 0 && !FitsOnDisk(0); --most) {
    if (!EvictOneForDisk("")) return false;
  }
  return !FitsOnDisk(0);
}

// Checks whether enough RAM could be freed, so that a publish that does not fit is refused before
// anything is evicted. Reserved bytes, objects in use, pinned objects and other tenants' guaranteed
// bytes cannot be freed.
bool Evictor::HostRoomIsPossible(uint64_t bytes, uint64_t point_bytes,
                                 const std::string& tenant) const {
  uint64_t needed = bytes + sums_->host_kept_bytes();
  if (limits_.point_bytes > 0) needed += sums_->kept_copy_bytes();
  if (limits_.disk_bytes == 0) needed += objects_->accounts().GuaranteedBytes(tenant);
  return needed <= limits_.host_bytes - std::min(limits_.host_bytes, point_bytes);
}

bool Evictor::PointRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  const uint64_t limit = limits_.point_bytes;
  const uint64_t all = PointBytes() + bytes, kept = KeptPointBytes() + bytes;
  if (all > limit && kept > limit) return false;
  if (sums_->host_bytes() + all + CopyBytes() <= limits_.host_bytes) return true;
  return HostRoomIsPossible(0, limits_.disk_bytes == 0 ? kept : std::min(all, limit), tenant);
}

bool Evictor::MayDemoteFor(uint64_t bytes) const {
  return bytes + sums_->host_fixed_bytes() <= HostLimitBytes();
}

bool Evictor::DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  return bytes + sums_->disk_kept_bytes() + objects_->accounts().GuaranteedBytes(tenant) <=
         limits_.disk_bytes;
}

bool Evictor::EvictOneForHost(const std::string& tenant) {
  // Without a disk, restore points that share all their objects with other points are evicted, too:
  // a lookup creates such a point again as long as the other points stay.
  const bool is_all = limits_.disk_bytes == 0;
  int left = is_all ? std::numeric_limits<int>::max() : kMaxExamined;
  RestorePointEntry* chosen = catalog_->feed().Visit([&](RestorePointEntry* point) {
    if (left-- == 0) return Answer::kTake;
    if (!MayLeave(*point) || !(is_all || FreesHost(*point))) return Answer::kNext;
    return MayLeaveFor(*point, tenant) ? Answer::kTake : Answer::kNextOwner;
  });
  if (chosen == nullptr || left < 0) return false;
  catalog_->Remove(chosen, Removal::kHostFull);
  return true;
}

bool Evictor::EvictOneForDisk(const std::string& tenant) {
  RestorePointEntry* chosen = catalog_->feed().Visit([&](RestorePointEntry* point) {
    if (!MayLeave(*point)) return Answer::kNext;
    return MayLeaveFor(*point, tenant) ? Answer::kTake : Answer::kNextOwner;
  });
  if (chosen != nullptr) catalog_->Remove(chosen, Removal::kDiskFull);
  return chosen != nullptr;
}

bool Evictor::Promise(const std::string& tenant, const std::vector<StoredObject*>& objects) {
  if (objects.empty()) return true;
  TenantAccount* const account = objects_->accounts().AccountOf(tenant);
  for (StoredObject* object : objects) objects_->Promise(object, account);
  bool fits = TenantAccounts::IsWithin(*account);
  if (!fits && TenantAccounts::CanBeWithin(*account)) {
    while (!TenantAccounts::IsWithin(*account) && EvictOneOf(*account)) {
    }
    fits = TenantAccounts::IsWithin(*account);
  }
  if (!fits) objects_->Unpromise(objects);
  return fits;
}

bool Evictor::EvictOneOf(const TenantAccount& account) {
  RestorePointEntry* chosen = catalog_->feed().VisitOwned(
      account.owner,
      [](RestorePointEntry* point) { return MayLeave(*point) ? Answer::kTake : Answer::kNext; });
  if (chosen != nullptr) catalog_->Remove(chosen, Removal::kQuota);
  return chosen != nullptr;
}

bool Evictor::IsWorthWriting(const RestorePointEntry& point) const {
  uint64_t bytes = point.manifest_cost_bytes;
  for (StoredObject* object : point.objects) {
    if (!object->on_disk) bytes += object->disk_cost_bytes();
  }
  if (sums_->disk_bytes() + bytes <= limits_.disk_bytes) return true;
  return !catalog_->feed().IsFirstVictim(point);
}

}  // namespace hearth
