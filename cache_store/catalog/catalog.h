// Catalog: the restore points, with their objects, their times to live and their uses.
//
// Bookkeeping only: no I/O, no clock, no locks; the store guards it. Ownership: owns the restore
// points; borrows the objects, which outlive the catalog. A pointer to a restore point is a handle:
// only the catalog and its feed write to the point.
//
// Invariants:
//  1. A restore point refers to exactly its NeededObjects; each of them is in some tier.
//  2. A restore point is in the index, in its tenant's account, and, if it may expire, in the
//     expiry schedule.
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
  // Called with each restore point just before its removal.
  using OnRemoved = std::function<void(const RestorePointEntry&, Removal)>;

  // RAM that the first restore point of a fingerprint and a tenant adds for the fingerprint and the
  // tenant (memory_cost.h).
  static uint64_t SpaceCostBytes(size_t tenant_bytes);

  Catalog(ObjectTable* objects, RetentionPolicy retention, OnRemoved on_removed);

  PrefixIndex& index() { return objects_->index(); }
  const TenantAccounts& accounts() const { return objects_->accounts(); }

  // Adds a restore point. Until Renew(), it expires with the first of its objects that other
  // restore points named before. REQUIRES: no restore point has this id; `objects` are linked, in
  // NeededObjects order.
  RestorePointEntry* AddRestorePoint(uint64_t number, const std::string& tenant,
                                     std::shared_ptr<const KnownFingerprint> model,
                                     SegmentNode* node, absl::Span<StoredObject* const> objects,
                                     absl::Span<const uint32_t> cuts, absl::Time now);
  RestorePointEntry* Find(const Digest& id) const;
  void Remove(RestorePointEntry* point, Removal why);
  // A held point is not evicted, but may be dropped. The caller holds its objects too.
  void HoldPoint(RestorePointEntry* point);
  void ReleasePoint(RestorePointEntry* point);

  // Sets the expiry: the first call sets it exactly, later calls only extend it.
  void Renew(RestorePointEntry* point, absl::Time expires);
  // Sets the expiry as the point's manifest has it. REQUIRES: the point was just added.
  void AdoptEnd(RestorePointEntry* point, absl::Time expires, bool inherited);
  // From BeginRenewal to EndRenewal the point does not expire: a publish is about to renew it.
  void BeginRenewal(RestorePointEntry* point);
  void EndRenewal(RestorePointEntry* point);
  const ExpirySchedule& expiry() const { return expiry_; }

  // Sets the eviction hint. Priority 0 and an earlier `kept_until` change nothing.
  void SetHint(RestorePointEntry* point, int priority, absl::Time kept_until, absl::Time now);
  // Restores the normal weight of points whose `kept_until` has passed.
  void EndKeeps(absl::Time now);

  // Marks the point and its ancestors as just used; of equally old points, children are evicted
  // first.
  void Touch(RestorePointEntry* point, absl::Time now);
  void CountHit(RestorePointEntry* point) { ++point->uses.hits; }
  // Takes up to `most` last uses of durable restore points that were not taken yet: manifest number
  // and time.
  std::vector<std::pair<uint64_t, absl::Time>> TakeUses(size_t most);

  // For events that the retention policy cannot learn from the catalog's changes.
  RetentionFeed& feed() { return feed_; }
  const RetentionFeed& feed() const { return feed_; }

  // Recovery: points added between the two calls come in no order of use; the retention policy
  // learns of them in EndAdopting. REQUIRES: the catalog is empty.
  void BeginAdopting();
  void EndAdopting(absl::Time now);

  // Notes that the point's manifest is on disk, with this number and expiry. An older manifest
  // becomes garbage.
  void SetDurable(RestorePointEntry* point, uint64_t manifest, absl::Time end);
  // Sets the number of the point's next manifest.
  void SetManifest(RestorePointEntry* point, uint64_t number);
  void SetPinned(RestorePointEntry* point, bool pinned);
  // Returns the bytes that pinning the point would add to StorageSums::pinned_bytes.
  static uint64_t BytesToPin(const RestorePointEntry& point);

  // Identifies a restore point across releases of the store's lock.
  struct PointName {
    uint64_t tick = 0;  // of its last use
    uint32_t tokens = 0;
    uint64_t number = 0;
    Digest id{};
    // Orders by last use, least recently used first.
    bool operator<(const PointName& other) const;
  };
  // Returns the names of the tenant's points, unordered. `tenant` may be kAllTenants.
  std::vector<PointName> NamesOf(const std::string& tenant) const;
  RestorePointEntry* Find(const PointName& name) const;  // null: the point was removed
  // Returns the points with the most hits; of equal hits, the most recently used first.
  std::vector<RestorePointEntry*> MostHit(size_t limit) const;
  std::vector<RestorePointEntry*> Pinned() const;

  const absl::flat_hash_map<std::string, OwnedPoints>& points_of_tenants() const {
    return points_of_;
  }
  size_t size() const { return size_; }  // restore points
  void ForEach(absl::FunctionRef<void(RestorePointEntry*)> visit) const;
  // RAM of the restore points by formula, with their nodes, objects and retention units, but
  // without the KV and its copies' bookkeeping (ObjectTable::copy_cost_bytes).
  uint64_t cost_bytes() const { return cost_bytes_ + objects_->cost_bytes(); }
  const PointSet& used() const { return used_; }  // since TakeUses
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
  absl::flat_hash_map<std::string, OwnedPoints> points_of_;  // by tenant
  size_t size_ = 0;
  absl::flat_hash_map<const KnownFingerprint*, Model>
      models_;  // fingerprints of the restore points
  uint64_t cost_bytes_ = 0;
  ExpirySchedule expiry_;
  std::map<std::pair<absl::Time, uint64_t>, RestorePointEntry*> kept_;  // by kept_until and number
  PointSet used_;
  RetentionFeed feed_;
  uint64_t tick_ = 0;  // of the last Touch
  bool is_adopting_ = false;
  uint64_t evicted_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_CATALOG_H_
