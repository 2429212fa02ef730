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

// A choice of restore points to remove for room, made before any of them is.
//
// Where tenants are guaranteed a floor, how much can go is known only point by point: a tenant's
// least worth keeping may be too large to leave it its floor. A publish that such a tenant stands
// in the way of must be refused without anyone having lost anything for it. Offered points count as
// gone for what is offered later; nothing changes. Invariant: removing exactly the victims frees at
// least what was asked for, and takes no tenant but `tenant` below its floor.
class EvictionPlan {
 public:
  // `of_disk`: frees disk bytes; otherwise those of a store that is in RAM only.
  EvictionPlan(bool of_disk, uint64_t needed_bytes, const std::string& tenant)
      : of_disk_(of_disk), needed_bytes_(needed_bytes), tenant_(tenant) {}

  // As Retention::Visit's `take`: kTake ends the visit, since enough is planned.
  Answer Offer(const RestorePointEntry* point) {
    if (point->pinned || point->sessions > 0 || planned_.contains(point)) return Answer::kNext;
    uint64_t leaving = 0;
    bool frees = false;
    for (const StoredObject* object : point->objects) {
      if (NamesLeft(object) != 1) continue;
      leaving += object->bytes();
      frees = frees || IsFreed(object);
    }
    if (!frees) return Answer::kNext;
    const uint64_t floor = point->account->quota.floor_bytes;
    if (floor > 0 && point->tenant != tenant_) {
      const uint64_t usage = point->account->usage.bytes - freed_usage_[point->account];
      if (usage < floor + leaving) return Answer::kNextOwner;
    }
    Plan(point);
    return IsEnough() ? Answer::kTake : Answer::kNext;
  }
  // After the visit: points that shared all they had until others were planned.
  void OfferWhatIsLeft() {
    for (size_t i = 0; i < alone_.size() && !IsEnough(); ++i) Offer(alone_[i]);
  }
  bool IsEnough() const { return freed_bytes_ >= needed_bytes_; }
  const std::vector<const RestorePointEntry*>& victims() const { return victims_; }

 private:
  uint32_t NamesLeft(const StoredObject* object) const {
    const auto found = left_.find(object);
    return (found == left_.end() ? object->names : found->second).count;
  }
  // With its last name.
  bool IsFreed(const StoredObject* object) const {
    return (of_disk_ ? object->on_disk : object->in_host) && object->sessions == 0;
  }
  void Plan(const RestorePointEntry* point) {
    planned_.insert(point);
    victims_.push_back(point);
    if (of_disk_ && point->durable) freed_bytes_ += point->manifest_cost_bytes;
    for (const StoredObject* object : point->objects) {
      NameCount& left = left_.try_emplace(object, object->names).first->second;
      left.Change(point, -1);
      if (left.count == 1) alone_.push_back(left.only());
      if (left.count > 0) continue;
      freed_usage_[point->account] += object->bytes();
      if (IsFreed(object)) freed_bytes_ += of_disk_ ? object->disk_cost_bytes() : object->bytes();
    }
  }

  const bool of_disk_;
  const uint64_t needed_bytes_;
  const std::string tenant_;
  uint64_t freed_bytes_ = 0;
  absl::flat_hash_map<const StoredObject*, NameCount> left_;         // of what victims name
  absl::flat_hash_map<const TenantAccount*, uint64_t> freed_usage_;  // as TenantUsage::bytes
  absl::flat_hash_set<const RestorePointEntry*> planned_;
  std::vector<const RestorePointEntry*> victims_, alone_;
};

}  // namespace

bool Evictor::ReserveHost(uint64_t bytes, const std::string& tenant) {
  if (sums_->host_bytes() + bytes > limits_.host_bytes) {
    if (!HostRoomIsPossible(bytes, tenant)) return false;
    const uint64_t lacking = sums_->host_bytes() + bytes - limits_.host_bytes;
    // Where there is a disk, what leaves RAM is demoted, which no floor stands in the way of.
    if (limits_.disk_bytes == 0 && !EvictBesideFloors(Removal::kHostFull, lacking, tenant)) {
      return false;
    }
  }
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
  if (sums_->disk_bytes() + bytes > limits_.disk_bytes) {
    if (!DiskRoomIsPossible(bytes, tenant)) return false;
    const uint64_t lacking = sums_->disk_bytes() + bytes - limits_.disk_bytes;
    if (!EvictBesideFloors(Removal::kDiskFull, lacking, tenant)) return false;
  }
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

// The order is that of the least worth at the start; one by one each that goes may change it. Only
// where floors leave no other way.
bool Evictor::EvictBesideFloors(Removal why, uint64_t bytes, const std::string& tenant) {
  if (objects_->ledger().GuaranteedBytes(tenant) == 0) return true;
  EvictionPlan plan(why == Removal::kDiskFull, bytes, tenant);
  catalog_->feed().Visit(Retention::Scope::kStore,
                         [&](const RestorePointEntry* point) { return plan.Offer(point); });
  plan.OfferWhatIsLeft();
  if (!plan.IsEnough()) return false;
  for (const RestorePointEntry* point : plan.victims()) catalog_->Remove(point, why);
  return true;
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
