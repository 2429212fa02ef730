// EvictionPlan: what would leave the store to make room, chosen before anything does.
//
// Where tenants are guaranteed a floor, how much can go is known only point by point: a tenant's
// least worth keeping may be too large to leave it its floor. A publish that such a tenant stands
// in the way of must be refused without anyone having lost anything for it. Offered points count as
// gone for what is offered later; nothing changes. Not thread safe: used and thrown away under the
// store's lock. Invariant: removing exactly the victims frees at least what was asked for, and
// takes no tenant but `tenant` below its floor.
#ifndef HEARTH_CACHE_STORE_CATALOG_EVICTION_PLAN_H_
#define HEARTH_CACHE_STORE_CATALOG_EVICTION_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/retention/retention.h"

namespace hearth {

class EvictionPlan {
 public:
  // `of_disk`: frees disk bytes; otherwise those of a store that is in RAM only.
  EvictionPlan(bool of_disk, uint64_t needed_bytes, const std::string& tenant)
      : of_disk_(of_disk), needed_bytes_(needed_bytes), tenant_(tenant) {}

  // As Retention::Visit's `take`: kTake ends the visit, since enough is planned.
  Retention::Answer Offer(const RestorePointEntry* point);
  // After the visit: points that shared all they had until others were planned.
  void OfferWhatIsLeft();
  bool IsEnough() const { return freed_bytes_ >= needed_bytes_; }
  const std::vector<const RestorePointEntry*>& victims() const { return victims_; }

 private:
  uint32_t NamesLeft(const StoredObject* object) const;
  bool IsFreed(const StoredObject* object) const;
  void Plan(const RestorePointEntry* point);

  const bool of_disk_;
  const uint64_t needed_bytes_;
  const std::string tenant_;
  uint64_t freed_bytes_ = 0;
  absl::flat_hash_map<const StoredObject*, NameCount> left_;         // of what victims name
  absl::flat_hash_map<const TenantAccount*, uint64_t> freed_usage_;  // as TenantUsage::bytes
  absl::flat_hash_set<const RestorePointEntry*> planned_;
  std::vector<const RestorePointEntry*> victims_, alone_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EVICTION_PLAN_H_
