// Catalog: the restore points, with their objects, their times to live and their uses.
//
// Bookkeeping only: no I/O, no time of its own, no locks; the store guards it. Ownership: owns the
// restore points; borrows the objects, which outlive it. A pointer to a restore point is a handle:
// only the catalog and its feed write to it.
//
// Invariants:
//  1. A restore point refers to exactly its NeededObjects; each of them is in some tier.
//  2. It is in the index, in its tenant's account, and in the expiry schedule if it may expire.
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
  // Told of each restore point just before it leaves.
  using OnRemoved = std::function<void(const RestorePointEntry&, Removal)>;

  // RAM that the first restore point of a fingerprint and tenant adds for these two
  // (memory_cost.h).
  static uint64_t SpaceCostBytes(size_t tenant_bytes);

  Catalog(ObjectTable* objects, RetentionPolicy retention, OnRemoved on_removed);

  PrefixIndex& index() { return objects_->index(); }
  const TenantLedger& ledger() const { return objects_->ledger(); }

  // REQUIRES: no restore point of this id; `objects` linked, in NeededObjects order. Until it is
  // renewed it lives no longer than the restore points that named its objects before it.
  RestorePointEntry* AddRestorePoint(uint64_t number, const std::string& tenant,
                                     std::shared_ptr<const KnownFingerprint> model,
                                     SegmentNode* node, absl::Span<StoredObject* const> objects,
                                     absl::Span<const uint32_t> cuts, absl::Time now);
  RestorePointEntry* Find(const Digest& id) const;
  void Remove(RestorePointEntry* point, Removal why);
  // A held point is not evicted, but may be dropped. Its objects are held with it.
  void HoldPoint(RestorePointEntry* point);
  void ReleasePoint(RestorePointEntry* point);

  // Sets its end: the first call exactly, later ones only to a later time.
  void Renew(RestorePointEntry* point, absl::Time expires);
  // Sets both as its manifest has them. REQUIRES: it was just added.
  void AdoptEnd(RestorePointEntry* point, absl::Time expires, bool inherited);
  // Between the two it does not expire: a publish is about to renew it.
  void BeginRenewal(RestorePointEntry* point);
  void EndRenewal(RestorePointEntry* point);
  const ExpirySchedule& expiry() const { return expiry_; }

  // Priority 0, and an earlier time, leave what it has.
  void SetHint(RestorePointEntry* point, int priority, absl::Time kept_until, absl::Time now);
  // Points that were kept until now are weighed as others again.
  void EndKeeps(absl::Time now);

  // Marks the point and its ancestors as just used: on equal age children go first.
  void Touch(RestorePointEntry* point, absl::Time now);
  void CountHit(RestorePointEntry* point) { ++point->uses.hits; }
  // At most `most` last uses of restore points on disk that were not taken yet, by manifest.
  std::vector<std::pair<uint64_t, absl::Time>> TakeUses(size_t most);

  // For news to the retention policy that the catalog's own changes do not bring.
  RetentionFeed& feed() { return feed_; }
  const RetentionFeed& feed() const { return feed_; }

  // Recovery: what is added between the two comes in no order of use, and the retention policy
  // learns of all of it at the end. REQUIRES: the catalog is empty.
  void BeginAdopting();
  void EndAdopting(absl::Time now);

  // Its manifest is on disk from now on, under this number and with this end. One that was there
  // before goes.
  void SetDurable(RestorePointEntry* point, uint64_t manifest, absl::Time end);
  // The number of its next manifest.
  void SetManifest(RestorePointEntry* point, uint64_t number);
  void SetPinned(RestorePointEntry* point, bool pinned);
  // The bytes that pinning it would add to StorageSums::pinned_bytes.
  static uint64_t BytesToPin(const RestorePointEntry& point);

  // A restore point as it is found again, for who lets others have the lock in between.
  struct PointName {
    uint64_t tick = 0;  // of its last use
    uint32_t tokens = 0;
    uint64_t number = 0;
    Digest id{};
    // The longest unused first.
    bool operator<(const PointName& other) const;
  };
  // In no order. `tenant` may be kAllTenants.
  std::vector<PointName> NamesOf(const std::string& tenant) const;
  RestorePointEntry* Find(const PointName& name) const;  // null: it left
  // Those with the most hits first, then the last used.
  std::vector<RestorePointEntry*> MostHit(size_t limit) const;
  std::vector<RestorePointEntry*> Pinned() const;

  const absl::flat_hash_map<std::string, OwnedPoints>& points_of_tenants() const {
    return points_of_;
  }
  size_t size() const { return size_; }  // restore points
  void ForEach(absl::FunctionRef<void(RestorePointEntry*)> visit) const;
  // RAM of the restore points by formula: with their nodes, objects and units of the retention
  // policy, without the KV and its copies' bookkeeping (ObjectTable::copy_cost_bytes).
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
  absl::flat_hash_map<const KnownFingerprint*, Model> models_;  // that restore points are of
  uint64_t cost_bytes_ = 0;
  ExpirySchedule expiry_;
  std::map<std::pair<absl::Time, uint64_t>, RestorePointEntry*> kept_;  // by their end and number
  PointSet used_;
  RetentionFeed feed_;
  uint64_t tick_ = 0;  // of the last use
  bool is_adopting_ = false;
  uint64_t evicted_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_CATALOG_H_
