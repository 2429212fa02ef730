// Evictor: frees space for new objects in RAM, on disk, and in a tenant's quota.
//
// To free RAM, the evictor first drops RAM copies of objects that are also on disk, least recently
// used first, because no data is lost. If that does not suffice, it removes restore points, least
// valuable first (retention.h). Not thread safe: the store's lock guards it. Ownership: borrows the
// catalog and its objects, which outlive it. Invariant: RAM and disk bytes, with reservations, are
// within the limits. Exceptions: the disk limit was lowered since the last reservation, or the
// start loaded more bookkeeping than fits into host_bytes.
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
    uint64_t host_bytes = 0;  // 0: no RAM tier
    uint64_t disk_bytes = 0;  // 0: no disk tier
    // Limit of the RAM for the bookkeeping of restore points. The bookkeeping also counts towards
    // host_bytes, unless host_bytes is 0. If point_bytes is 0, bookkeeping is not counted.
    uint64_t point_bytes = 0;
  };

  Evictor(const Limits& limits, ObjectTable* objects, Catalog* catalog)
      : limits_(limits), objects_(objects), catalog_(catalog), sums_(&objects->sums()) {}

  const Limits& limits() const { return limits_; }
  // Sets the disk limit. A lower limit does not evict anything until TrimDisk. REQUIRES: there is a
  // disk tier.
  void SetDiskLimit(uint64_t bytes) { limits_.disk_bytes = std::max<uint64_t>(bytes, 1); }

  // Call at start: if the bookkeeping of the loaded restore points exceeds the limit, raises the
  // limit to its size. So no loaded point is evicted, and each new point evicts only as much as it
  // needs.
  void KeepLoadedPoints() {
    if (limits_.point_bytes > 0) {
      limits_.point_bytes = std::max(limits_.point_bytes, PointBytes());
    }
  }

  // Evicts until `bytes` more fit into RAM, and reserves them for `tenant`. Returns false, and
  // reserves nothing, if that is impossible. Then nothing was evicted, except if each remaining
  // point belongs to another tenant and its eviction would cost that tenant guaranteed bytes.
  bool ReserveHost(uint64_t bytes, const std::string& tenant);
  bool ReserveDisk(uint64_t bytes, const std::string& tenant);
  bool FitsOnDisk(uint64_t bytes) const {  // whether `bytes` more fit without an eviction
    return bytes <= limits_.disk_bytes && sums_->disk_bytes() <= limits_.disk_bytes - bytes;
  }
  // Evicts up to `most` restore points while the disk holds more than its limit. Restore points
  // that are pinned, in use or guaranteed (floor_bytes) stay, so the limit may stay exceeded.
  // Returns whether another call is needed.
  bool TrimDisk(int most);
  // Reserves RAM for the bookkeeping of restore points: evicts restore points until `bytes` more
  // are within the limit, then frees KV in RAM. If the tenant has more than its share of restore
  // points, its own points are evicted first.
  bool ReservePoints(uint64_t bytes, const std::string& tenant);
  void UnreservePoints(uint64_t bytes) { sums_->UnreservePoints(bytes); }
  // PointBytes: RAM of the restore points' bookkeeping, with reservations. HostCopyCostBytes: RAM
  // of the bookkeeping of one RAM copy. Both are 0 if bookkeeping is not counted.
  uint64_t PointBytes() const;
  uint64_t HostCopyCostBytes(const StoredObject& object) const;
  // Returns the limit of KV in RAM: host_bytes minus all bookkeeping.
  uint64_t HostLimitBytes() const;
  // Reserves RAM only by dropping RAM copies of objects that are also on disk. Never removes a
  // restore point.
  bool ReserveHostByDemoting(uint64_t bytes);
  bool MayDemoteFor(uint64_t bytes) const;
  void UnreserveHost(uint64_t bytes) { sums_->UnreserveHost(bytes); }
  void UnreserveDisk(uint64_t bytes) { sums_->UnreserveDisk(bytes); }

  // Evicts restore points of the tenant until `objects` of a future restore point fit into its
  // quota. The objects then count in the tenant's account until ObjectTable::Unpromise. Returns
  // false if that is impossible; then nothing was evicted or counted. REQUIRES: the caller holds
  // the objects; each object occurs once.
  bool Promise(const std::string& tenant, const std::vector<StoredObject*>& objects);

  // Returns false if writing the restore point to disk is useless: the disk is full, and this point
  // would be the first one to be evicted.
  bool IsWorthWriting(const RestorePointEntry& point) const;

 private:
  // `point_bytes`: bytes of bookkeeping that remain after all possible evictions.
  bool HostRoomIsPossible(uint64_t bytes, uint64_t point_bytes, const std::string& tenant) const;
  bool PointRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  bool DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  void DropSpareCopiesFor(uint64_t bytes);
  bool EvictOneOf(const TenantAccount& account);
  bool EvictOneForHost(const std::string& tenant);
  bool EvictOneForDisk(const std::string& tenant);
  bool EvictOneForPoints(const std::string& tenant);
  // Upper bound of the bookkeeping that remains after all evictable restore points are evicted.
  uint64_t KeptPointBytes() const;
  uint64_t CopyBytes() const;  // RAM of the bookkeeping of all RAM copies

  Limits limits_;
  ObjectTable* const objects_;
  Catalog* const catalog_;
  StorageSums* const sums_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EVICTOR_H_
