// StorageSums: the bytes of stored objects and manifests in each tier, how many of them must stay,
// and how many are reserved beside them.
//
// Each sum follows from the state of objects and restore points alone, so every change of one is
// made within a Change. An object's part of its tenant's account is kept with them.
// Not thread safe: the store guards it.
#ifndef HEARTH_CACHE_STORE_CATALOG_STORAGE_SUMS_H_
#define HEARTH_CACHE_STORE_CATALOG_STORAGE_SUMS_H_

#include <cstdint>

#include "cache_store/catalog/stored_object.h"

namespace hearth {

class StorageSums {
 public:
  // Takes an object or a restore point out of all sums, and its destructor adds the new state.
  // Changes of one entry must not nest.
  template <typename Entry>
  class Change {
   public:
    Change(StorageSums* sums, const Entry* entry) : sums_(sums), entry_(entry) {
      sums_->Count(*entry_, uint64_t{0} - 1);
    }
    ~Change() { sums_->Count(*entry_, 1); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    StorageSums* const sums_;
    const Entry* const entry_;
  };

  // With what is reserved.
  uint64_t host_bytes() const { return sums_.host_bytes + host_reserved_; }
  uint64_t disk_bytes() const { return sums_.disk_bytes + disk_reserved_; }
  // Of these, the bytes that eviction may not take, and those that demoting may not.
  uint64_t host_kept_bytes() const { return sums_.host_kept_bytes + host_reserved_; }
  uint64_t host_fixed_bytes() const { return sums_.host_fixed_bytes + host_reserved_; }
  uint64_t disk_kept_bytes() const { return sums_.disk_kept_bytes + disk_reserved_; }
  uint64_t pinned_bytes() const { return sums_.pinned_bytes; }  // an object counts once
  uint64_t disk_objects() const { return sums_.disk_objects; }

  void ReserveHost(uint64_t bytes) { host_reserved_ += bytes; }
  void ReserveDisk(uint64_t bytes) { disk_reserved_ += bytes; }
  void UnreserveHost(uint64_t bytes);
  void UnreserveDisk(uint64_t bytes);

  // For the catalog's own checks: adds the bytes in the tiers, and nothing to a tenant's account.
  void CountInTiers(const StoredObject& object, uint64_t times);
  void Count(const RestorePointEntry& point, uint64_t times);
  bool SameInTiers(const StorageSums& other) const;

 private:
  struct Sums {
    uint64_t host_bytes = 0, host_kept_bytes = 0, host_fixed_bytes = 0;
    uint64_t disk_bytes = 0, disk_kept_bytes = 0, disk_objects = 0;
    uint64_t pinned_bytes = 0;
  };
  // `times`: 1, or -1 modulo 2^64, as all these sums are.
  void Count(const StoredObject& object, uint64_t times);

  Sums sums_;
  uint64_t host_reserved_ = 0, disk_reserved_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_STORAGE_SUMS_H_
