// How the catalog makes room. Both tiers follow one order (retention.h); they differ in what
// leaving means: from RAM, a restore point that is whole on disk is demoted, which loses nothing;
// from the store, it is removed.
#include <algorithm>
#include <cassert>
#include <utility>

#include "cache_store/catalog/catalog.h"
#include "cache_store/catalog/eviction_plan.h"

namespace hearth {

bool Catalog::ReserveHost(uint64_t bytes, const std::string& tenant) {
  if (host_bytes() + bytes > limits_.host_bytes) {
    if (!HostRoomIsPossible(bytes, tenant)) return false;
    const uint64_t lacking = host_bytes() + bytes - limits_.host_bytes;
    // Where there is a disk, what leaves RAM is demoted, which no floor stands in the way of.
    if (limits_.disk_bytes == 0 && !EvictBesideFloors(Removal::kHostFull, lacking, tenant)) {
      return false;
    }
  }
  while (host_bytes() > limits_.host_bytes - bytes) {
    if (!EvictOneForHost(tenant)) return false;
  }
  host_reserved_ += bytes;
  return true;
}

bool Catalog::ReserveHostByDemoting(uint64_t bytes) {
  if (!MayDemoteFor(bytes)) return false;
  while (host_bytes() > limits_.host_bytes - bytes) {
    if (!DemoteOne()) return false;
  }
  host_reserved_ += bytes;
  return true;
}

bool Catalog::ReserveDisk(uint64_t bytes, const std::string& tenant) {
  if (disk_bytes() + bytes > limits_.disk_bytes) {
    if (!DiskRoomIsPossible(bytes, tenant)) return false;
    const uint64_t lacking = disk_bytes() + bytes - limits_.disk_bytes;
    if (!EvictBesideFloors(Removal::kDiskFull, lacking, tenant)) return false;
  }
  while (disk_bytes() > limits_.disk_bytes - bytes) {
    if (!EvictOneForDisk(tenant)) return false;
  }
  disk_reserved_ += bytes;
  return true;
}

// A publish that cannot fit must not empty the store on its way to being refused. What stays in any
// case: reservations, what sessions hold, what is pinned, what others are guaranteed.
bool Catalog::HostRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  uint64_t needed = bytes + host_reserved_ + sums_.host_kept_bytes;
  if (limits_.disk_bytes == 0) needed += ledger_.GuaranteedBytes(tenant);
  return needed <= limits_.host_bytes;
}

bool Catalog::MayDemoteFor(uint64_t bytes) const {
  return bytes + host_reserved_ + sums_.host_fixed_bytes <= limits_.host_bytes;
}

bool Catalog::DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const {
  return bytes + disk_reserved_ + sums_.disk_kept_bytes + ledger_.GuaranteedBytes(tenant) <=
         limits_.disk_bytes;
}

// The order is that of the least worth at the start; one by one each that goes may change it. Only
// where floors leave no other way.
bool Catalog::EvictBesideFloors(Removal why, uint64_t bytes, const std::string& tenant) {
  if (ledger_.GuaranteedBytes(tenant) == 0) return true;
  EvictionPlan plan(why == Removal::kDiskFull, bytes, tenant);
  feed_.Visit(Retention::Scope::kStore,
              [&](RestorePointEntry* point) { return plan.Offer(point); });
  plan.OfferWhatIsLeft();
  if (!plan.IsEnough()) return false;
  for (RestorePointEntry* point : plan.victims()) Remove(point, why);
  return true;
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

// Its leaving takes nothing that its tenant is guaranteed against `tenant`.
bool MayLeaveFor(const RestorePointEntry& point, const std::string& tenant) {
  if (point.account->quota.floor_bytes == 0 || point.tenant == tenant) return true;
  uint64_t bytes = 0;
  for (const StoredObject* object : point.objects) {
    if (object->restore_points == 1) bytes += object->bytes();
  }
  return TenantLedger::IsAboveFloor(*point.account, bytes);
}

}  // namespace

using Answer = Retention::Answer;

bool Catalog::DemoteOne() {
  RestorePointEntry* chosen = nullptr;
  feed_.Visit(Retention::Scope::kHost, [&](RestorePointEntry* point) {
    if (!IsWholeOnDisk(*point) || !FreesHost(*point)) return Answer::kNext;
    chosen = point;
    return Answer::kTake;
  });
  if (chosen == nullptr) return false;
  Demote(chosen);
  return true;
}

bool Catalog::EvictOneForHost(const std::string& tenant) {
  RestorePointEntry* chosen = nullptr;
  const auto take = [&](RestorePointEntry* point) {
    if (!FreesHost(*point)) return Answer::kNext;
    // Where the least worth of a tenant may not leave, none of it does.
    if (!IsWholeOnDisk(*point) && !MayLeaveFor(*point, tenant)) return Answer::kNextOwner;
    chosen = point;
    return Answer::kTake;
  };
  feed_.Visit(Retention::Scope::kHost, take);
  // Then what is partly in RAM only, and so not resident: a publish that RAM had no room for.
  if (chosen == nullptr) feed_.Visit(Retention::Scope::kStore, take);
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
  feed_.Visit(Retention::Scope::kStore, [&](RestorePointEntry* point) {
    if (!FreesDisk(*point)) return Answer::kNext;
    if (!MayLeaveFor(*point, tenant)) return Answer::kNextOwner;
    chosen = point;
    return Answer::kTake;
  });
  if (chosen == nullptr) return false;
  Remove(chosen, Removal::kDiskFull);
  return true;
}

void Catalog::Charge(StoredObject* object, TenantAccount* account) {
  assert(object->account == nullptr || object->account == account);
  object->account = account;
}

void Catalog::Uncharge(StoredObject* object) {
  if (object->restore_points > 0 || object->promised > 0) return;
  TenantAccount* const account = std::exchange(object->account, nullptr);
  if (account != nullptr) ledger_.Settle(account);
}

bool Catalog::Promise(const std::string& tenant, const std::vector<StoredObject*>& objects) {
  if (objects.empty()) return true;
  TenantAccount* const account = ledger_.AccountOf(tenant);
  for (StoredObject* object : objects) {
    assert(object->sessions > 0);
    Charge(object, account);
    const Change change(this, object);
    ++object->promised;
  }
  bool fits = TenantLedger::IsWithin(*account);
  if (!fits && !is_adopting_ && TenantLedger::CanBeWithin(*account)) {
    while (!TenantLedger::IsWithin(*account) && EvictOneOf(*account)) {
    }
    fits = TenantLedger::IsWithin(*account);
  }
  if (!fits) Unpromise(objects);
  return fits;
}

void Catalog::Unpromise(const std::vector<StoredObject*>& objects) {
  for (StoredObject* object : objects) {
    {
      const Change change(this, object);
      assert(object->promised > 0);
      --object->promised;
    }
    Uncharge(object);
  }
}

bool Catalog::EvictOneOf(const TenantAccount& account) {
  RestorePointEntry* chosen = nullptr;
  feed_.VisitOwned(account.owner, [&](RestorePointEntry* point) {
    if (point->pinned || point->sessions > 0) return Answer::kNext;
    chosen = point;
    return Answer::kTake;
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
    CountName(Retention::Scope::kHost, object, point, -1);
    if (object->host_restore_points == 0 && object->sessions == 0 && object->on_disk) {
      DropHostCopy(object);
    }
  }
}

}  // namespace hearth
