// Evictor: makes room for new objects in RAM, on the disk, and in a tenant's quota.
//
// For room in RAM copies of what the disk has, too, are dropped first, the longest unused first:
// that loses nothing. For room beyond that, and in the store, restore points are removed, the least
// worth keeping first (retention.h). Not thread safe: the store guards it. Ownership: borrows the
// catalog and its objects, which outlive it. Invariant: host and disk bytes are within the limits,
// reservations included, unless the disk's limit was lowered since the last reservation, or more
// bookkeeping was loaded at the start than host_bytes has room for.
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
    // Limit of the restore points' bookkeeping in RAM, which counts into host_bytes unless these
    // are 0. 0: bookkeeping is not counted.
    uint64_t point_bytes = 0;
  };

  Evictor(const Limits& limits, ObjectTable* objects, Catalog* catalog)
      : limits_(limits), objects_(objects), catalog_(catalog), sums_(&objects->sums()) {}

  const Limits& limits() const { return limits_; }
  // A lower limit evicts nothing by itself: TrimDisk does. REQUIRES: there is a disk tier.
  void SetDiskLimit(uint64_t bytes) { limits_.disk_bytes = std::max<uint64_t>(bytes, 1); }

  // At a start: if the points that were loaded take more than the limit, raises the limit to that,
  // so that they stay, and each new point evicts only for its own room.
  void KeepLoadedPoints() {
    if (limits_.point_bytes > 0) {
      limits_.point_bytes = std::max(limits_.point_bytes, PointBytes());
    }
  }

  // Evict until `bytes` more fit, and reserve them. False: nothing was reserved, and nothing was
  // evicted, with one exception: the room was there in sum, but every point left belongs to another
  // tenant and is too large to leave that tenant its guaranteed bytes.
  bool ReserveHost(uint64_t bytes, const std::string& tenant);
  bool ReserveDisk(uint64_t bytes, const std::string& tenant);
  bool FitsOnDisk(uint64_t bytes) const {  // without an eviction
    return bytes <= limits_.disk_bytes && sums_->disk_bytes() <= limits_.disk_bytes - bytes;
  }
  // Evicts `most` points at most while the disk holds more than its limit, also where that cannot
  // be enough: points that are pinned, in use or guaranteed to a tenant stay. True: call it again.
  bool TrimDisk(int most);
  // The same for bookkeeping: evicts points until `bytes` more are within the limit, then drops or
  // evicts KV from RAM. If the tenant has more than its share of points, it loses its own first.
  bool ReservePoints(uint64_t bytes, const std::string& tenant);
  void UnreservePoints(uint64_t bytes) { sums_->UnreservePoints(bytes); }
  // Bookkeeping of the restore points, reservations included, and of a copy in RAM, which counts
  // with the KV. 0: bookkeeping is not counted.
  uint64_t PointBytes() const;
  uint64_t HostCopyCostBytes(const StoredObject& object) const;
  // Limit of the KV in RAM: host_bytes less all bookkeeping.
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
  // `point_bytes`: bookkeeping that stays when the room is made.
  bool HostRoomIsPossible(uint64_t bytes, uint64_t point_bytes, const std::string& tenant) const;
  bool PointRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  bool DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  void DropSpareCopiesFor(uint64_t bytes);
  bool EvictOneOf(const TenantAccount& account);
  bool EvictOneForHost(const std::string& tenant);
  bool EvictOneForDisk(const std::string& tenant);
  bool EvictOneForPoints(const std::string& tenant);
  // Bookkeeping that stays when every point that may leave has left, at most.
  uint64_t KeptPointBytes() const;
  uint64_t CopyBytes() const;  // bookkeeping of the copies in RAM

  Limits limits_;
  ObjectTable* const objects_;
  Catalog* const catalog_;
  StorageSums* const sums_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EVICTOR_H_
