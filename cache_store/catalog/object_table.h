// ObjectTable: the stored objects, their tiers and their references; StorageSums: the bytes in each
// tier, the bytes that eviction must keep, and the bytes that are reserved.
//
// Bookkeeping only: no I/O, no locks. The store guards it with one mutex, does the reads and writes
// outside, and afterwards erases what the table put into Garbage. Ownership: owns the objects, and
// with them the index, the tenants' accounts and the sums. A pointer to an object is a handle: only
// the table writes to what the sums are made of.
//
// Invariants:
//  1. An object lives while a restore point or a session refers to it, and not longer.
//  2. A RAM copy is dropped only when the object is on disk, or with the object.
//  3. Each sum follows from the state of objects and restore points alone, so every change of one
//     is made within a Change. An object's part of its tenant's account is kept with them.
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
#include "cache_store/base/tenant_ledger.h"
#include "cache_store/catalog/prefix_index.h"
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
  uint64_t host_objects() const { return sums_.host_objects; }
  uint64_t host_used_bytes() const { return sums_.host_bytes; }  // without what is reserved

  void ReserveHost(uint64_t bytes) { host_reserved_ += bytes; }
  void ReserveDisk(uint64_t bytes) { disk_reserved_ += bytes; }
  // For the bookkeeping of restore points that are about to be added.
  void ReservePoints(uint64_t bytes) { points_reserved_ += bytes; }
  void UnreservePoints(uint64_t bytes);
  uint64_t points_reserved() const { return points_reserved_; }
  // Bookkeeping that evicting all restore points that are neither pinned nor held frees, at least.
  uint64_t evictable_point_bytes() const { return sums_.evictable_point_bytes; }
  // Bookkeeping of the RAM copies in host_kept_bytes.
  uint64_t kept_copy_bytes() const { return sums_.kept_copy_bytes; }
  void UnreserveHost(uint64_t bytes);
  void UnreserveDisk(uint64_t bytes);

  // Adds a new restore point, or takes it out. `times`: 1, or -1 modulo 2^64, as all these sums
  // are.
  void Count(const RestorePointEntry& point, uint64_t times);
  // For the catalog's own checks: adds the bytes in the tiers, and nothing to a tenant's account.
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

// To be erased from their tiers, or freed, once the lock is released.
struct Garbage {
  std::vector<HostCopy> host_copies;  // to be freed there: unmapping many MiB takes milliseconds
  std::vector<uint64_t> disk_objects;
  std::vector<uint64_t> manifests;
  std::vector<uint64_t> gone_objects;  // altogether, or retired
  uint64_t disk_bytes = 0;             // of the disk objects
};

// Traffic of a tier since the store opened.
struct TierFlow {
  uint64_t written_bytes = 0;
  uint64_t unread_bytes = 0;  // of these, left the tier without ever having been read from it
};

// Values that many objects have in common, each held once while an object has it.
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
  // Found by their numbers.
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

  explicit ObjectTable(TenantQuotas quotas) : ledger_(std::move(quotas)) {}

  PrefixIndex& index() { return index_; }
  TenantLedger& ledger() { return ledger_; }
  const TenantLedger& ledger() const { return ledger_; }
  // Of kHost or kDisk.
  const TierFlow& flow(Tier tier) const { return tier == Tier::kHost ? host_flow_ : disk_flow_; }
  StorageSums& sums() { return sums_; }
  const StorageSums& sums() const { return sums_; }

  // Of objects, restore points and manifests alike.
  uint64_t NextNumber() { return next_number_++; }
  uint64_t next_number() const { return next_number_; }  // above all that were given
  void ReserveNumbersBelow(uint64_t number);

  // A new object, held once, in no tier and not visible. REQUIRES: `number` came from NextNumber,
  // for this object only; a layer for each slice.
  StoredObject* NewObject(uint64_t number, const Digest& key, const ObjectId& id,
                          absl::Span<const uint64_t> slice_digests,
                          const std::vector<uint32_t>& layers, uint64_t slice_bytes,
                          const std::string& publisher = "");
  // Makes it visible. REQUIRES: the node has its key, and no object of this group.
  void Link(StoredObject* object, SegmentNode* node);
  // Hides it from lookups for good; its last reference frees it. REQUIRES: held, and no restore
  // point names it.
  void Retire(StoredObject* object);
  StoredObject* Find(uint64_t number) const;  // null when absent
  void Hold(StoredObject* object);
  void Release(StoredObject* object);

  // Moves between tiers. REQUIRES: not there yet; room, by a reservation that is released under the
  // same lock.
  void SetInHost(StoredObject* object, HostCopy slices);
  void SetOnDisk(StoredObject* object);
  // The same for an object that an earlier run wrote, and may have read.
  void AdoptOnDisk(StoredObject* object);
  // Drops the RAM copy of an object that is also on disk.
  void DropHostCopy(StoredObject* object);
  // Demotes: drops spare copies that no session holds, the longest unused first, until what is in
  // RAM takes `most_bytes`, or none is left.
  void DropSpareCopies(uint64_t most_bytes);
  // Somebody read it: its spare copy, if it has one, is the last to go.
  void NoteUse(StoredObject* object);
  // A write of it failed, and may have left bytes on disk.
  void SetBegunOnDisk(StoredObject* object) { object->disk.begun = true; }

  // Called as restore points come and go.
  void ChangeNames(StoredObject* object, int by);
  void ChangePins(StoredObject* object, int by);
  void KeepUntil(StoredObject* object, absl::Time expires);
  // Frees an object that nothing refers to.
  void DropUnneeded(StoredObject* object);
  // The object counts as this tenant's from its first promise or name to its last.
  void Charge(StoredObject* object, TenantAccount* account);
  void Promise(StoredObject* object, TenantAccount* account);
  void Unpromise(const std::vector<StoredObject*>& objects);

  // The manifest of a removed restore point, or of one that was not added in the end.
  void DiscardManifest(uint64_t number) { garbage_.manifests.push_back(number); }
  Garbage TakeGarbage() { return std::exchange(garbage_, Garbage{}); }

  const Objects& all() const { return objects_; }
  // RAM of the objects' bookkeeping and of the index, by formula.
  uint64_t cost_bytes() const {
    return cost_bytes_ + index_.cost_bytes() + layers_.cost_bytes() + publishers_.cost_bytes();
  }
  // RAM of the bookkeeping of all copies in RAM, by formula.
  uint64_t copy_cost_bytes() const { return copy_cost_bytes_; }
  uint64_t bytes() const { return bytes_; }      // each counted once, whatever its tiers
  uint64_t demoted() const { return demoted_; }  // copies

 private:
  void Uncharge(StoredObject* object);
  void Unlink(StoredObject* object);
  // The list of spare copies, in order of use: the longest unused first.
  void AddSpare(StoredObject* object);
  void RemoveSpare(StoredObject* object);
  void ForgetHostCopy(StoredObject* object);
  void Free(StoredObject* object);

  Objects objects_;
  CommonValues<std::vector<uint32_t>> layers_;
  CommonValues<std::string> publishers_;
  PrefixIndex index_;
  TenantLedger ledger_;
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
