// RetentionFeed: reports to the retention policy which restore points exist, which were used, and
// which could be evicted.
//
// Not thread safe: the store guards it. Ownership: owns the policy, borrows the restore points.
// Invariant: the policy holds exactly the points with `listed`.
#ifndef HEARTH_CACHE_STORE_CATALOG_RETENTION_FEED_H_
#define HEARTH_CACHE_STORE_CATALOG_RETENTION_FEED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/retention/retention.h"

namespace hearth {

class RetentionFeed {
 public:
  using Take = absl::FunctionRef<Retention::Answer(RestorePointEntry*)>;

  // `index` holds the restore points; the policy identifies points by their keys. It outlives this
  // feed.
  RetentionFeed(RetentionPolicy policy, const PrefixIndex* index)
      : retention_(MakeRetention(policy, Retention::Depend::kNothing)), index_(index) {}

  // Restore points added from here on belong to one prompt.
  void BeginPublish(uint32_t tokens);
  void Add(RestorePointEntry* point, absl::Time now);
  // Adds a point from before a restart. REQUIRES: its last use is earlier than the last uses of all
  // points added so far.
  void Adopt(RestorePointEntry* point, absl::Time used, absl::Time now);
  // Does nothing if the point was not added. `may_return`: the policy remembers the point.
  void Remove(const RestorePointEntry& point, bool may_return);
  // Call when the point becomes evictable or stops being evictable.
  void Update(const RestorePointEntry& point);
  // Sets the point's weight: its priority or, if `is_kept`, above all other points of its tenant.
  void Weigh(const RestorePointEntry& point, bool is_kept);

  // Notes a use of these points, root first.
  void Renew(const std::vector<RestorePointEntry*>& path, absl::Time now);
  // Records a request for a prompt, stored or not: stored boundaries count as used, remembered
  // boundaries as returned.
  void Request(const PromptChain& chain, uint32_t tokens, absl::Time now);

  // Offers restore points, least valuable first, until `take` takes one. Returns it, or null.
  RestorePointEntry* Visit(Take take) const;
  RestorePointEntry* VisitOwned(Retention::Owner owner, Take take) const;
  // Returns whether the point would be offered first.
  bool IsFirstVictim(const RestorePointEntry& point) const;

  size_t size() const { return size_; }
  bool Contains(const RestorePointEntry& point) const;
  // For the catalog's own checks: number of points in the policy.
  size_t held() const { return retention_->held(); }

 private:
  void SetListed(RestorePointEntry* point);
  // Calls `take` and stores a taken point in `taken`.
  Retention::Answer Offer(Retention::Key key, Take take, RestorePointEntry** taken) const;

  const std::unique_ptr<Retention> retention_;
  const PrefixIndex* const index_;
  size_t size_ = 0;            // listed points
  Retention::Prompt publish_;  // the publish that adds restore points
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_RETENTION_FEED_H_
