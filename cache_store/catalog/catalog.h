// Catalog: the restore points in the store, with their objects, times to live and last uses.
//
// Bookkeeping only: no I/O, no clock, no locks; the store's lock guards it. Ownership: owns the
// restore points; borrows the objects, which outlive the catalog. Callers use a pointer to a
// restore point only as a handle: only the catalog and its RetentionFeed change the point.
//
// Invariants:
//  1. A restore point refers to exactly the objects of NeededObjects(); each of them is in some
//     tier.
//  2. A restore point is in the index, in its tenant's account and, if it may expire, in the expiry
//     schedule.
#ifndef HEARTH_CACHE_STORE_CATALOG_CATALOG_H_
#define HEARTH_CACHE_STORE_CATALOG_CATALOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/base/removal.h"
#include "cache_store/catalog/expiry_schedule.h"
#include "cache_store/catalog/object_table.h"
#include "cache_store/catalog/retention_feed.h"
#include "cache_store/catalog/stored_object.h"

namespace hearth {

class Catalog {
 public:
  using PointSet = absl::flat_hash_set<RestorePointEntry*>;
  using OwnedPoints = absl::flat_hash_set<std::unique_ptr<RestorePointEntry>>;
  // Called with each restore point immediately before its removal.
  using OnRemoved = std::function<void(const RestorePointEntry&, Removal)>;

  // RAM that the first restore point of a model and a tenant needs for the bookkeeping of the model
  // and the tenant (memory_cost.h).
  static uint64_t SpaceCostBytes(size_t tenant_bytes);

  Catalog(ObjectTable* objects, RetentionPolicy retention, OnRemoved on_removed);

  PrefixIndex& index() { return objects_->index(); }
  const TenantAccounts& accounts() const { return objects_->accounts(); }

  // Adds a restore point. Until Renew(), the point expires when the first of its objects expires
  // that other restore points used before. REQUIRES: no restore point has this id; `objects` are
  // linked and in NeededObjects() order.
  RestorePointEntry* AddRestorePoint(uint64_t number, const std::string& tenant,
                                     std::shared_ptr<const KnownFingerprint> model,
                                     SegmentNode* node, absl::Span<StoredObject* const> objects,
                                     absl::Span<const uint32_t> cuts, absl::Time now);
  RestorePointEntry* Find(const Digest& id) const;
  void Remove(RestorePointEntry* point, Removal why);
  // Protects the restore point from eviction, but not from being dropped. The caller must also hold
  // the point's objects.
  void HoldPoint(RestorePointEntry* point);
  void ReleasePoint(RestorePointEntry* point);

  // Sets the expiry of the restore point. The first call sets it exactly; later calls can only
  // extend it.
  void Renew(RestorePointEntry* point, absl::Time expires);
  // Sets the expiry that the restore point's manifest on disk contains. REQUIRES: the point was
  // just added.
  void AdoptEnd(RestorePointEntry* point, absl::Time expires, bool inherited);
  // Between BeginRenewal and EndRenewal the restore point does not expire, because a running
  // publish will renew it.
  void BeginRenewal(RestorePointEntry* point);
  void EndRenewal(RestorePointEntry* point);
  const ExpirySchedule& expiry() const { return expiry_; }

  // Sets the publisher's hint for the eviction of the point. A priority of 0, or a `kept_until`
  // that is not later than the present value, changes nothing.
  void SetHint(RestorePointEntry* point, int priority, absl::Time kept_until, absl::Time now);
  // Ends the keep hints whose `kept_until` has passed: the points are then evicted in normal order.
  void EndKeeps(absl::Time now);

  // Marks the restore point and its ancestors (points that are prefixes of it) as just used. Within
  // one use, longer points are evicted before their ancestors.
  void Touch(RestorePointEntry* point, absl::Time now);
  void CountHit(RestorePointEntry* point) { ++point->uses.hits; }
  // Returns and clears up to `most` recorded last uses of points on disk: manifest number and time.
  std::vector<std::pair<uint64_t, absl::Time>> TakeUses(size_t most);

  // For events that the eviction policy cannot learn from the catalog's own changes.
  RetentionFeed& feed() { return feed_; }
  const RetentionFeed& feed() const { return feed_; }

  // Recovery at start: restore points added between BeginAdopting and EndAdopting come in any
  // order; the eviction policy learns about them in EndAdopting, in the order of their last use.
  // REQUIRES: the catalog is empty.
  void BeginAdopting();
  void EndAdopting(absl::Time now);

  // Records that the manifest of the restore point is on disk, with this number and expiry. An
  // older manifest of the point will be erased.
  void SetDurable(RestorePointEntry* point, uint64_t manifest, absl::Time end);
  // Sets the number that the next manifest of the restore point will have.
  void SetManifest(RestorePointEntry* point, uint64_t number);
  void SetPinned(RestorePointEntry* point, bool pinned);
  // Returns the bytes by which pinning the restore point would increase StorageSums::pinned_bytes.
  static uint64_t BytesToPin(const RestorePointEntry& point);

  // Identifies a restore point after the store's lock was released, when a pointer may be invalid.
  struct PointName {
    uint64_t tick = 0;  // tick of the restore point's last use
    uint32_t tokens = 0;
    uint64_t number = 0;
    Digest id{};
    // Orders restore points by last use, least recently used first.
    bool operator<(const PointName& other) const;
  };
  // Returns the names of the tenant's restore points, unordered. `tenant` may be kAllTenants.
  std::vector<PointName> NamesOf(const std::string& tenant) const;
  RestorePointEntry* Find(const PointName& name) const;  // null: the restore point was removed
  // Returns up to `limit` restore points with the most hits; among equal hits, the most recently
  // used first.
  std::vector<RestorePointEntry*> MostHit(size_t limit) const;
  std::vector<RestorePointEntry*> Pinned() const;

  const absl::flat_hash_map<std::string, OwnedPoints>& points_of_tenants() const {
    return points_of_;
  }
  size_t size() const { return size_; }  // number of restore points
  void ForEach(absl::FunctionRef<void(RestorePointEntry*)> visit) const;
  // Returns the RAM of the bookkeeping of all restore points, computed by formula: with nodes,
  // objects and the eviction policy, but without the KV and without the bookkeeping of RAM copies
  // (ObjectTable::copy_cost_bytes).
  uint64_t cost_bytes() const { return cost_bytes_ + objects_->cost_bytes(); }
  const PointSet& used() const { return used_; }  // restore points used since the last TakeUses()
  uint64_t evicted() const { return evicted_; }

 private:
  using Change = StorageSums::Change<RestorePointEntry>;
  struct Model {
    std::shared_ptr<const KnownFingerprint> known;
    uint64_t points = 0;
  };

  const KnownFingerprint* HoldModel(std::shared_ptr<const KnownFingerprint> known);
  void ReleaseModel(const KnownFingerprint* known);

  ObjectTable* const objects_;
  const OnRemoved on_removed_;
  absl::flat_hash_map<std::string, OwnedPoints> points_of_;  // restore points of each tenant
  size_t size_ = 0;
  absl::flat_hash_map<const KnownFingerprint*, Model>
      models_;  // fingerprints that restore points use
  uint64_t cost_bytes_ = 0;
  ExpirySchedule expiry_;
  // points with a keep hint, by the hint's end and the point's number
  std::map<std::pair<absl::Time, uint64_t>, RestorePointEntry*> kept_;
  PointSet used_;
  RetentionFeed feed_;
  uint64_t tick_ = 0;  // number of the last Touch()
  bool is_adopting_ = false;
  uint64_t evicted_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_CATALOG_H_
