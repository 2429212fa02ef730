// ObjectTable: the stored objects, their tiers and their references. StorageSums: the bytes in each
// tier, the bytes that cannot be evicted, and the reserved bytes.
//
// Bookkeeping only: no I/O, no locks. The store guards it with one mutex, reads and writes tiers
// without the mutex, and afterwards erases what the table put into Garbage. Ownership: owns the
// objects, the index, the tenants' accounts and the sums. Callers use a pointer to an object only
// as a handle: only the table changes fields on which the sums depend.
//
// Invariants:
//  1. An object exists exactly while a restore point or a session refers to it.
//  2. A RAM copy is dropped only if the object is on disk, or together with the object.
//  3. Each sum depends only on the state of objects and restore points. Code changes this state
//     only within a Change, which updates the sums and the tenant's account.
#ifndef HEARTH_CACHE_STORE_CATALOG_OBJECT_TABLE_H_
#define HEARTH_CACHE_STORE_CATALOG_OBJECT_TABLE_H_

#include <cassert>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/time/time.h"
#include "cache_store/base/memory_cost.h"
#include "cache_store/base/tenant_accounts.h"
#include "cache_store/catalog/prefix_index.h"
#include "cache_store/catalog/stored_object.h"

namespace hearth {

class StorageSums {
 public:
  // Guards a change of an object or a restore point: the constructor subtracts the entry from all
  // sums, and the destructor adds it in its new state. Do not nest changes of one entry.
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

  // Bytes in a tier, with reservations.
  uint64_t host_bytes() const { return sums_.host_bytes + host_reserved_; }
  uint64_t disk_bytes() const { return sums_.disk_bytes + disk_reserved_; }
  // Parts of host_bytes and disk_bytes. "Kept" bytes cannot be evicted; "fixed" bytes are only in
  // RAM or in use, so that their RAM copy cannot be dropped.
  uint64_t host_kept_bytes() const { return sums_.host_kept_bytes + host_reserved_; }
  uint64_t host_fixed_bytes() const { return sums_.host_fixed_bytes + host_reserved_; }
  uint64_t disk_kept_bytes() const { return sums_.disk_kept_bytes + disk_reserved_; }
  // an object counts once, in however many tiers it is
  uint64_t pinned_bytes() const { return sums_.pinned_bytes; }
  uint64_t disk_objects() const { return sums_.disk_objects; }
  uint64_t host_objects() const { return sums_.host_objects; }
  // bytes in RAM without reservations
  uint64_t host_used_bytes() const { return sums_.host_bytes; }

  void ReserveHost(uint64_t bytes) { host_reserved_ += bytes; }
  void ReserveDisk(uint64_t bytes) { disk_reserved_ += bytes; }
  // Reserves RAM for the bookkeeping of restore points that will be added.
  void ReservePoints(uint64_t bytes) { points_reserved_ += bytes; }
  void UnreservePoints(uint64_t bytes);
  uint64_t points_reserved() const { return points_reserved_; }
  // Lower bound of the bookkeeping that would be freed by evicting all restore points that are
  // neither pinned nor held by a session.
  uint64_t evictable_point_bytes() const { return sums_.evictable_point_bytes; }
  // RAM of the bookkeeping of the copies in host_kept_bytes.
  uint64_t kept_copy_bytes() const { return sums_.kept_copy_bytes; }
  void UnreserveHost(uint64_t bytes);
  void UnreserveDisk(uint64_t bytes);

  // Adds the restore point to the sums (`times` = 1) or subtracts it (`times` = -1 modulo 2^64).
  void Count(const RestorePointEntry& point, uint64_t times);
  // Used only by the catalog's self-check: counts the bytes in the tiers, not in a tenant's
  // account.
  void CountInTiers(const StoredObject& object, uint64_t times);
  bool SameInTiers(const StorageSums& other) const;

 private:
  struct Sums {
    uint64_t host_bytes = 0, host_kept_bytes = 0, host_fixed_bytes = 0, host_objects = 0;
    uint64_t disk_bytes = 0, disk_kept_bytes = 0, disk_objects = 0;
    uint64_t pinned_bytes = 0;
    uint64_t evictable_point_bytes = 0, kept_copy_bytes = 0;
  };
  void Count(const StoredObject& object, uint64_t times);

  Sums sums_;
  uint64_t host_reserved_ = 0, disk_reserved_ = 0, points_reserved_ = 0;
};

// What the catalog removed: data to erase from tiers, or to free, after the lock is released.
struct Garbage {
  std::vector<HostCopy>
      host_copies;  // freed without the lock, because unmapping many MiB takes milliseconds
  std::vector<uint64_t> disk_objects;
  std::vector<uint64_t> manifests;
  std::vector<uint64_t> gone_objects;  // numbers of objects that were freed or retired
  uint64_t disk_bytes = 0;             // total bytes of disk_objects
};

// Bytes written to a tier since the store opened.
struct TierFlow {
  uint64_t written_bytes = 0;
  // part of written_bytes that was removed from the tier without being read
  uint64_t unread_bytes = 0;
};

// Values that many objects share: each distinct value is stored once while an object uses it.
template <typename Value>
class CommonValues {
 public:
  const Value* Take(const Value& value) {
    const auto [found, is_new] = uses_.try_emplace(value, 0);
    ++found->second;
    if (is_new) cost_bytes_ += CostBytes(value);
    return &found->first;
  }
  void Release(const Value* value) {
    const auto found = uses_.find(*value);
    assert(found != uses_.end() && &found->first == value);
    if (--found->second > 0) return;
    cost_bytes_ -= CostBytes(*value);
    uses_.erase(found);
  }
  uint64_t cost_bytes() const { return cost_bytes_; }

 private:
  static uint64_t CostBytes(const Value& value) {
    return BlockBytes(sizeof(std::pair<const Value, uint64_t>)) + SlotBytes(sizeof(void*)) +
           BlockBytes(value.size() * sizeof(value[0]));
  }

  absl::node_hash_map<Value, uint64_t> uses_;
  uint64_t cost_bytes_ = 0;
};

class ObjectTable {
 public:
  // Hashes and compares objects by number, so that a number finds an object.
  struct NumberHash {
    using is_transparent = void;
    size_t operator()(uint64_t number) const { return absl::Hash<uint64_t>()(number); }
    size_t operator()(const std::unique_ptr<StoredObject>& object) const {
      return (*this)(object->number);
    }
  };
  struct SameNumber {
    using is_transparent = void;
    using Object = std::unique_ptr<StoredObject>;
    bool operator()(const Object& a, const Object& b) const { return a->number == b->number; }
    bool operator()(const Object& a, uint64_t b) const { return a->number == b; }
    bool operator()(uint64_t a, const Object& b) const { return a == b->number; }
  };
  using Objects = absl::flat_hash_set<std::unique_ptr<StoredObject>, NumberHash, SameNumber>;
  using Change = StorageSums::Change<StoredObject>;

  explicit ObjectTable(TenantQuotas quotas) : accounts_(std::move(quotas)) {}

  PrefixIndex& index() { return index_; }
  TenantAccounts& accounts() { return accounts_; }
  const TenantAccounts& accounts() const { return accounts_; }
  // Returns the traffic of a tier. REQUIRES: `tier` is kHost or kDisk.
  const TierFlow& flow(Tier tier) const { return tier == Tier::kHost ? host_flow_ : disk_flow_; }
  StorageSums& sums() { return sums_; }
  const StorageSums& sums() const { return sums_; }

  // Returns a new number for an object, a restore point or a manifest.
  uint64_t NextNumber() { return next_number_++; }
  // greater than all numbers that were returned
  uint64_t next_number() const { return next_number_; }
  void ReserveNumbersBelow(uint64_t number);

  // Creates an object that is held once, in no tier and not visible. REQUIRES: `number` came from
  // NextNumber() and is used only for this object; `layers` has one entry for each slice.
  StoredObject* NewObject(uint64_t number, const Digest& key, const ObjectId& id,
                          absl::Span<const uint64_t> slice_digests,
                          const std::vector<uint32_t>& layers, uint64_t slice_bytes,
                          const std::string& publisher = "");
  // Makes the object visible to lookups. REQUIRES: the node has the object's key, and no object of
  // the same group.
  void Link(StoredObject* object, SegmentNode* node);
  // Hides the object from lookups permanently; the object is freed with its last reference.
  // REQUIRES: the object is held, and no restore point uses it.
  void Retire(StoredObject* object);
  StoredObject* Find(uint64_t number) const;  // null if absent
  void Hold(StoredObject* object);
  void Release(StoredObject* object);

  // Records that a tier has a copy of the object. REQUIRES: there was no copy in this tier; space
  // was reserved, and the caller releases the reservation under the same lock.
  void SetInHost(StoredObject* object, HostCopy slices);
  void SetOnDisk(StoredObject* object);
  // At start: records that the object is on disk, written by an earlier run of the store.
  void AdoptOnDisk(StoredObject* object);
  // Drops the RAM copy of an object that is also on disk.
  void DropHostCopy(StoredObject* object);
  // Drops RAM copies of objects that are also on disk and that no session holds, least recently
  // used first, until the KV in RAM takes at most `most_bytes` or no such copy is left.
  void DropSpareCopies(uint64_t most_bytes);
  // Records a read of the object: its RAM copy, if the object is also on disk, becomes the most
  // recently used.
  void NoteUse(StoredObject* object);
  // Records that a write of the object to disk failed and may have left bytes there.
  void SetBegunOnDisk(StoredObject* object) { object->disk.begun = true; }

  // Changes the number of restore points that use the object.
  void ChangeNames(StoredObject* object, int by);
  void ChangePins(StoredObject* object, int by);
  void KeepUntil(StoredObject* object, absl::Time expires);
  // Frees the object if no restore point, publish or session refers to it.
  void DropUnneeded(StoredObject* object);
  // Counts the object in the tenant's account until the last restore point and the last publish
  // that use it end.
  void Charge(StoredObject* object, TenantAccount* account);
  void Promise(StoredObject* object, TenantAccount* account);
  void Unpromise(const std::vector<StoredObject*>& objects);

  // Puts a manifest into Garbage: its restore point was removed, or never added.
  void DiscardManifest(uint64_t number) { garbage_.manifests.push_back(number); }
  Garbage TakeGarbage() { return std::exchange(garbage_, Garbage{}); }

  const Objects& all() const { return objects_; }
  // Returns the RAM of the bookkeeping of all objects and of the index, by formula.
  uint64_t cost_bytes() const {
    return cost_bytes_ + index_.cost_bytes() + layers_.cost_bytes() + publishers_.cost_bytes();
  }
  // Returns the RAM of the bookkeeping of all RAM copies, by formula.
  uint64_t copy_cost_bytes() const { return copy_cost_bytes_; }
  uint64_t bytes() const { return bytes_; }  // bytes of all objects; each object counts once
  // number of RAM copies dropped by DropSpareCopies so far
  uint64_t demoted() const { return demoted_; }

 private:
  void Uncharge(StoredObject* object);
  void Unlink(StoredObject* object);
  // Functions for the list of RAM copies whose objects are also on disk, least recently used first.
  void AddSpare(StoredObject* object);
  void RemoveSpare(StoredObject* object);
  void ForgetHostCopy(StoredObject* object);
  void Free(StoredObject* object);

  Objects objects_;
  CommonValues<std::vector<uint32_t>> layers_;
  CommonValues<std::string> publishers_;
  PrefixIndex index_;
  TenantAccounts accounts_;
  StorageSums sums_;
  TierFlow host_flow_, disk_flow_;
  Garbage garbage_;
  uint64_t next_number_ = 1;
  StoredObject* first_spare_ = nullptr;
  StoredObject* last_spare_ = nullptr;
  uint64_t bytes_ = 0, demoted_ = 0, cost_bytes_ = 0, copy_cost_bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_OBJECT_TABLE_H_
