// Evictor: makes room for new objects in RAM, on the disk, and in a tenant's quota.
//
// For room in RAM copies of what the disk has, too, are dropped first, the longest unused first:
// that loses nothing. For room beyond that, and in the store, restore points are removed, the least
// worth keeping first (retention.h). Not thread safe: the store guards it. Ownership: borrows the
// catalog and its objects, which outlive it. Invariant: host and disk bytes are within the limits,
// reservations included, unless the disk's limit was lowered since the last reservation.
#ifndef HEARTH_CACHE_STORE_CATALOG_EVICTOR_H_
#define HEARTH_CACHE_STORE_CATALOG_EVICTOR_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cache_store/catalog/catalog.h"

namespace hearth {

class Evictor {
 public:
  struct Limits {
    uint64_t host_bytes = 0;  // 0: no RAM copies
    uint64_t disk_bytes = 0;  // 0: no disk tier
    // The most RAM that the bookkeeping of restore points may take, of host_bytes if there are any.
    // 0: it is not counted.
    uint64_t point_bytes = 0;
  };

  Evictor(const Limits& limits, ObjectTable* objects, Catalog* catalog)
      : limits_(limits), objects_(objects), catalog_(catalog), sums_(&objects->sums()) {}

  const Limits& limits() const { return limits_; }
  // A lower limit evicts nothing by itself: TrimDisk does. REQUIRES: there is a disk tier.
  void SetDiskLimit(uint64_t bytes) { limits_.disk_bytes = std::max<uint64_t>(bytes, 1); }

  // Evict until `bytes` more fit, and reserve them. False: nothing was reserved, and nothing
  // evicted unless the room was there in sum, but no point of another tenant small enough to leave
  // it its guaranteed bytes. These stay in any case.
  bool ReserveHost(uint64_t bytes, const std::string& tenant);
  bool ReserveDisk(uint64_t bytes, const std::string& tenant);
  bool FitsOnDisk(uint64_t bytes) const {  // without an eviction
    return bytes <= limits_.disk_bytes && sums_->disk_bytes() <= limits_.disk_bytes - bytes;
  }
  // Evicts `most` points at most while the disk holds more than its limit, also where that cannot
  // be enough: points that are pinned, in use or guaranteed to a tenant stay. True: call it again.
  bool TrimDisk(int most);
  // Makes room for bookkeeping: evicts until it is within its limit with `bytes` more, then drops
  // or evicts KV from RAM. The tenant's own points go first if it has more than its share of them.
  bool ReservePoints(uint64_t bytes, const std::string& tenant);
  void UnreservePoints(uint64_t bytes) { sums_->UnreservePoints(bytes); }
  // What the bookkeeping takes with what is reserved for it; what a copy in RAM adds to it. 0: it
  // is not counted.
  uint64_t PointBytes() const;
  uint64_t HostCopyCostBytes(const StoredObject& object) const;
  // For KV: what the bookkeeping leaves.
  uint64_t HostLimitBytes() const;
  // The same without removing anything: only drops RAM copies of what is on disk.
  bool ReserveHostByDemoting(uint64_t bytes);
  bool MayDemoteFor(uint64_t bytes) const;
  void UnreserveHost(uint64_t bytes) { sums_->UnreserveHost(bytes); }
  void UnreserveDisk(uint64_t bytes) { sums_->UnreserveDisk(bytes); }

  // Evicts the tenant's own points until these objects of a future restore point fit its quota; the
  // objects count as its own until ObjectTable::Unpromise. False: impossible; nothing was evicted
  // or promised. REQUIRES: held; each object once.
  bool Promise(const std::string& tenant, const std::vector<StoredObject*>& objects);

  // False: the disk has no room for it, and the first to be evicted would be the point itself.
  bool IsWorthWriting(const RestorePointEntry& point) const;

 private:
  bool HostRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  bool DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  void DropSpareCopiesFor(uint64_t bytes);
  bool EvictOneOf(const TenantAccount& account);
  bool EvictOneForHost(const std::string& tenant);
  bool EvictOneForDisk(const std::string& tenant);
  bool EvictOneForPoints(const std::string& tenant);
  // Of host_bytes, what KV may have once all has gone that can go.
  uint64_t MostHostBytes() const;

  Limits limits_;
  ObjectTable* const objects_;
  Catalog* const catalog_;
  StorageSums* const sums_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EVICTOR_H_
