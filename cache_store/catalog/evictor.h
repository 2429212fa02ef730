// Evictor: makes room for new objects in RAM, on the disk, and in a tenant's quota.
//
// To free RAM, the evictor first drops RAM copies of objects that are also on disk, least recently
// used first: no data is lost. If more room is needed, it removes restore points, least valuable
// first (retention.h). Not thread safe: the store guards it. Ownership: borrows the catalog and its
// objects, which outlive it. Invariant: host and disk bytes, with reservations, are within the
// limits, unless the disk's limit was lowered since the last reservation, or the start loaded more
// bookkeeping than host_bytes has room for.
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
    // Limit of the restore points' bookkeeping in RAM. Bookkeeping counts into host_bytes unless
    // host_bytes is 0. 0: bookkeeping is not counted.
    uint64_t point_bytes = 0;
  };

  Evictor(const Limits& limits, ObjectTable* objects, Catalog* catalog)
      : limits_(limits), objects_(objects), catalog_(catalog), sums_(&objects->sums()) {}

  const Limits& limits() const { return limits_; }
  // A lower limit does not evict; TrimDisk does. REQUIRES: there is a disk tier.
  void SetDiskLimit(uint64_t bytes) { limits_.disk_bytes = std::max<uint64_t>(bytes, 1); }

  // At a start: if the loaded points take more than the limit, raises the limit to their size, so
  // that they stay and each new point evicts only for its own room.
  void KeepLoadedPoints() {
    if (limits_.point_bytes > 0) {
      limits_.point_bytes = std::max(limits_.point_bytes, PointBytes());
    }
  }

  // Evicts until `bytes` more fit, and reserves them. Returns false if that is impossible; then
  // nothing is reserved, and nothing was evicted unless every remaining point belongs to another
  // tenant and is too large to leave that tenant its guaranteed bytes.
  bool ReserveHost(uint64_t bytes, const std::string& tenant);
  bool ReserveDisk(uint64_t bytes, const std::string& tenant);
  bool FitsOnDisk(uint64_t bytes) const {  // without evicting
    return bytes <= limits_.disk_bytes && sums_->disk_bytes() <= limits_.disk_bytes - bytes;
  }
  // Evicts up to `most` points while the disk holds more than its limit. Points that are pinned, in
  // use or guaranteed to a tenant stay, so the limit may remain exceeded. Returns true if another
  // call is needed.
  bool TrimDisk(int most);
  // Like ReserveHost, for bookkeeping: evicts points until `bytes` more are within the limit, then
  // drops or evicts KV from RAM. If the tenant has more than its share of points, evicts its own
  // points first.
  bool ReservePoints(uint64_t bytes, const std::string& tenant);
  void UnreservePoints(uint64_t bytes) { sums_->UnreservePoints(bytes); }
  // PointBytes: bookkeeping of the restore points with reservations. HostCopyCostBytes: bookkeeping
  // of a RAM copy, counted with the KV. 0: bookkeeping is not counted.
  uint64_t PointBytes() const;
  uint64_t HostCopyCostBytes(const StoredObject& object) const;
  // Limit of the KV in RAM: host_bytes minus all bookkeeping.
  uint64_t HostLimitBytes() const;
  // Like ReserveHost, but never removes a point: only drops RAM copies of objects on disk.
  bool ReserveHostByDemoting(uint64_t bytes);
  bool MayDemoteFor(uint64_t bytes) const;
  void UnreserveHost(uint64_t bytes) { sums_->UnreserveHost(bytes); }
  void UnreserveDisk(uint64_t bytes) { sums_->UnreserveDisk(bytes); }

  // Evicts the tenant's own points until `objects` of a future restore point fit its quota; the
  // objects count in the tenant's account until ObjectTable::Unpromise. Returns false if that is
  // impossible; then nothing was evicted or promised. REQUIRES: the caller holds the objects; each
  // object occurs once.
  bool Promise(const std::string& tenant, const std::vector<StoredObject*>& objects);

  // Returns false if the disk has no room for the point and the point itself would be evicted
  // first.
  bool IsWorthWriting(const RestorePointEntry& point) const;

 private:
  // `point_bytes`: bookkeeping that stays after eviction.
  bool HostRoomIsPossible(uint64_t bytes, uint64_t point_bytes, const std::string& tenant) const;
  bool PointRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  bool DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  void DropSpareCopiesFor(uint64_t bytes);
  bool EvictOneOf(const TenantAccount& account);
  bool EvictOneForHost(const std::string& tenant);
  bool EvictOneForDisk(const std::string& tenant);
  bool EvictOneForPoints(const std::string& tenant);
  // Upper bound of the bookkeeping that stays after all evictable points are evicted.
  uint64_t KeptPointBytes() const;
  uint64_t CopyBytes() const;  // bookkeeping of the RAM copies

  Limits limits_;
  ObjectTable* const objects_;
  Catalog* const catalog_;
  StorageSums* const sums_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EVICTOR_H_
