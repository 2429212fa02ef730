// What the store holds, and what may go: objects, restore points, references and bytes.
//
// Bookkeeping only: no I/O, no time of its own, no locks. The store guards it with one mutex, does
// the reads and writes outside, and afterwards carries out what the catalog put into Garbage.
//
// Invariants:
//  1. host_bytes() <= limits.host_bytes, disk_bytes() <= limits.disk_bytes, reservations included.
//  2. An object lives while a restore point or a session refers to it, and not longer.
//  3. A restore point refers to exactly its NeededObjects; each of them is in some tier.
//  4. A RAM copy goes only when the object is on disk or goes altogether.
#ifndef HEARTH_CACHE_STORE_CATALOG_CATALOG_H_
#define HEARTH_CACHE_STORE_CATALOG_CATALOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/removal.h"
#include "cache_store/base/tenant_ledger.h"
#include "cache_store/catalog/expiry_schedule.h"
#include "cache_store/catalog/prefix_index.h"
#include "cache_store/catalog/retention_feed.h"
#include "cache_store/catalog/stored_object.h"

namespace hearth {

// What is left to do once the lock is released: erase these from their tiers.
struct Garbage {
  std::vector<uint64_t> host_objects;
  std::vector<uint64_t> disk_objects;
  std::vector<uint64_t> manifests;
  std::vector<uint64_t> gone_objects;  // altogether, or quarantined
  uint64_t disk_bytes = 0;             // what the disk objects took

  void Add(const Garbage& other);
};

// What went through a tier since the store opened.
struct TierFlow {
  uint64_t written_bytes = 0;
  uint64_t unread_bytes = 0;  // of these, what left the tier without ever having been read from it
};

class Catalog {
 public:
  struct Limits {
    uint64_t host_bytes = 0;  // 0: no RAM copies
    uint64_t disk_bytes = 0;  // 0: no disk tier
    RetentionPolicy retention = RetentionPolicy::kDefault;
  };
  // Told of each restore point just before it leaves.
  using OnRemoved = std::function<void(const RestorePointEntry&, Removal)>;

  Catalog(const Limits& limits, TenantQuotas quotas, OnRemoved on_removed);

  PrefixIndex& index() { return index_; }
  uint64_t NextNumber() { return next_number_++; }
  uint64_t next_number() const { return next_number_; }  // above all that were given
  void ReserveNumbersBelow(uint64_t number);

  // A new object, held once, in no tier and not visible.
  StoredObject* NewObject(uint64_t number, const Digest& key, const ObjectId& id,
                          std::vector<uint64_t> slice_digests, std::vector<uint32_t> layers,
                          uint64_t slice_bytes);
  // Makes it visible. REQUIRES: the node has no object of this group.
  void Link(StoredObject* object, SegmentNode* node);
  // Hides it from lookups for good; it goes with its last reference. REQUIRES: held, and no restore
  // point names it.
  void Retire(StoredObject* object);
  StoredObject* FindObject(uint64_t number) const;  // null when absent
  void Hold(StoredObject* object);
  void Release(StoredObject* object);
  // Its objects are held beside it. One that is held is not evicted; it may be dropped.
  void HoldPoint(RestorePointEntry* point);
  void ReleasePoint(RestorePointEntry* point);

  // REQUIRES: no restore point of this id; `objects` linked, in NeededObjects order. Until it is
  // renewed it lives no longer than the restore points that named its objects before it.
  RestorePointEntry* AddRestorePoint(uint64_t number, const std::string& tenant,
                                     std::shared_ptr<const KnownFingerprint> model,
                                     SegmentNode* node, std::vector<StoredObject*> objects,
                                     std::vector<uint32_t> cuts, absl::Time now);
  RestorePointEntry* Find(const Digest& id) const;
  void Remove(RestorePointEntry* point, Removal why);

  // It lives until `expires`: the first time exactly, from then on never shorter than before.
  void Renew(RestorePointEntry* point, absl::Time expires);
  // As its manifest says of both. REQUIRES: it was just added.
  void AdoptEnd(RestorePointEntry* point, absl::Time expires, bool inherited);
  // In between it does not expire: a publish is about to renew it.
  void BeginRenewal(RestorePointEntry* point);
  void EndRenewal(RestorePointEntry* point);
  const ExpirySchedule& expiry() const { return expiry_; }

  // Marks as just used, and its ancestors as used with it: on equal age children go first.
  void Touch(RestorePointEntry* point, absl::Time now);

  // For what the retention policy is told beside what follows from the catalog's own changes.
  RetentionFeed& feed() { return feed_; }

  // Recovery. In between, the retention policy knows only of what was adopted, which must be the
  // last used first.
  struct PastUse {
    absl::Time last_use;  // of longer ones that go through it, too
    uint32_t tokens = 0;
    uint64_t number = 0;
    uint64_t tick = 0;
    Digest id;
    // Last uses are whole seconds: of one second, what is longer counts as older, to go first.
    bool operator<(const PastUse& other) const;
  };
  void BeginAdopting();
  // What was not adopted yet counts as just used; it is looked for where `ids` name it not.
  void EndAdopting(absl::Span<const Digest> ids, absl::Time now);
  std::vector<PastUse> UsesOf(absl::Span<const Digest> ids) const;
  // Ids that are gone or were adopted before are passed over; what was used since the uses were
  // taken counts as used now.
  void AdoptUses(absl::Span<const PastUse> uses, absl::Time now);
  // Last uses of restore points on disk that were not taken yet, by manifest; at most `most`.
  std::vector<std::pair<uint64_t, absl::Time>> TakeUses(size_t most);
  // False: there is no room for it on the disk, and what would make room is the point itself.
  bool IsWorthWriting(const RestorePointEntry& point) const;

  // Evict, the least worth keeping first (retention.h), until `bytes` more fit, and reserve them.
  // False: nothing was reserved, and unless something unforeseen stood in the way nothing was
  // evicted either. What others than `tenant` are guaranteed stays.
  bool ReserveHost(uint64_t bytes, const std::string& tenant);
  bool ReserveDisk(uint64_t bytes, const std::string& tenant);
  // The same without removing anything: RAM copies go of what is whole on disk.
  bool ReserveHostByDemoting(uint64_t bytes);
  bool MayDemoteFor(uint64_t bytes) const;
  void UnreserveHost(uint64_t bytes);
  void UnreserveDisk(uint64_t bytes);
  // Evicts the tenant's own, the least worth keeping first, until these objects, which a restore
  // point of it is to name, fit its quota beside the rest; they count as its own until Unpromise.
  // False: it cannot; nothing was evicted, nothing promised. REQUIRES: held, each of them once.
  bool Promise(const std::string& tenant, const std::vector<StoredObject*>& objects);
  void Unpromise(const std::vector<StoredObject*>& objects);
  const TenantLedger& ledger() const { return ledger_; }
  // Moves between tiers. REQUIRES: room, from a reservation given back under the same lock.
  void SetInHost(StoredObject* object);
  // `compressed_bytes`: as StoredObject's.
  void SetOnDisk(StoredObject* object, uint64_t compressed_bytes);
  // The same for what an earlier run wrote, and maybe read.
  void AdoptOnDisk(StoredObject* object, uint64_t compressed_bytes);
  void SetDurable(RestorePointEntry* point);
  // Counts the point as resident. REQUIRES: every object has a RAM copy or is on disk.
  void SetResident(RestorePointEntry* point);
  // Stops counting it as resident; RAM copies that nothing else needs go, if they are on disk.
  void Demote(RestorePointEntry* point);
  // Drops the RAM copy of an object that is also on disk.
  void DropHostCopy(StoredObject* object);
  void SetPinned(RestorePointEntry* point, bool pinned);
  // What pinning it would add to pinned_bytes().
  uint64_t BytesToPin(const RestorePointEntry& point) const;

  // A manifest that was written for a restore point which is not to be.
  void DiscardManifest(uint64_t number) { garbage_.manifests.push_back(number); }
  Garbage TakeGarbage();
  // Only what RAM is to erase: evicted copies go before new ones take their room.
  std::vector<uint64_t> TakeHostGarbage();
  std::vector<RestorePointEntry*> PointsOf(const std::string& tenant) const;
  // The most first, then the last used.
  std::vector<const RestorePointEntry*> MostHit(size_t limit) const;
  std::vector<RestorePointEntry*> PointsNaming(const StoredObject* object) const;

  uint64_t host_bytes() const { return sums_.host_bytes + host_reserved_; }
  uint64_t disk_bytes() const { return sums_.disk_bytes + disk_reserved_; }
  uint64_t pinned_bytes() const { return sums_.pinned_bytes; }  // an object counts once
  uint64_t disk_objects() const { return sums_.disk_objects; }
  uint64_t object_bytes() const { return object_bytes_; }  // each counted once, whatever its tiers
  size_t objects() const { return objects_.size(); }
  size_t restore_points() const { return points_.size(); }
  const TierFlow& host_flow() const { return host_flow_; }
  const TierFlow& disk_flow() const { return disk_flow_; }
  uint64_t demoted() const { return demoted_; }
  uint64_t evicted() const { return evicted_; }
  // Asserts that the sums and references kept along the way equal those counted anew. For tests.
  void CheckInvariants() const;
  const Limits& limits() const { return limits_; }

 private:
  // What the objects and restore points add up to. Kept: what eviction may not take.
  struct Sums {
    uint64_t host_bytes = 0, host_kept_bytes = 0;
    uint64_t host_fixed_bytes = 0;  // what demoting may not take
    uint64_t disk_bytes = 0, disk_kept_bytes = 0, disk_objects = 0;
    uint64_t pinned_bytes = 0;
  };
  // Takes an object or a restore point out of all sums, and puts it back as it is then. Not within
  // another one of the same.
  template <typename Entry>
  class Change {
   public:
    Change(Catalog* catalog, const Entry* entry) : catalog_(catalog), entry_(entry) {
      catalog_->Count(*entry_, uint64_t{0} - 1);
    }
    ~Change() { catalog_->Count(*entry_, 1); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Catalog* const catalog_;
    const Entry* const entry_;
  };
  // `times`: 1, or -1 modulo 2^64, as all these sums are.
  void Count(const StoredObject& object, uint64_t times);
  void Count(const RestorePointEntry& point, uint64_t times);
  void CheckSums() const;
  void CheckTenants() const;

  bool HostRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  bool DiskRoomIsPossible(uint64_t bytes, const std::string& tenant) const;
  // False: it is not possible, and nothing went. True: so much was freed, or no floor is in the
  // way.
  bool EvictBesideFloors(Removal why, uint64_t bytes, const std::string& tenant);
  bool EvictOneOf(const TenantAccount& account);
  bool DemoteOne();
  bool EvictOneForHost(const std::string& tenant);
  bool EvictOneForDisk(const std::string& tenant);
  void Charge(StoredObject* object, TenantAccount* account);
  void Uncharge(StoredObject* object);
  void CheckExpiry() const;
  void CheckSole() const;
  // `scope` kHost: of the names, those of points that are resident in RAM.
  void CountName(Retention::Scope scope, StoredObject* object, RestorePointEntry* point, int by);
  void Unlink(StoredObject* object);
  void FreeIfUnused(StoredObject* object);
  void ForgetHostCopy(StoredObject* object);

  const Limits limits_;
  const OnRemoved on_removed_;
  PrefixIndex index_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<StoredObject>> objects_;  // by number
  absl::flat_hash_map<Digest, std::unique_ptr<RestorePointEntry>> points_;
  absl::flat_hash_map<std::string, absl::flat_hash_set<RestorePointEntry*>> points_of_;
  ExpirySchedule expiry_;
  absl::flat_hash_set<RestorePointEntry*> used_;  // since TakeUses
  TenantLedger ledger_;
  RetentionFeed feed_;
  Garbage garbage_;
  uint64_t next_number_ = 1;
  uint64_t tick_ = uint64_t{1} << 32;  // recovery counts down from here
  uint64_t oldest_tick_ = uint64_t{1} << 32;
  bool is_adopting_ = false;
  Sums sums_;
  uint64_t host_reserved_ = 0, disk_reserved_ = 0;
  uint64_t object_bytes_ = 0;
  uint64_t demoted_ = 0, evicted_ = 0;
  TierFlow host_flow_, disk_flow_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_CATALOG_H_
