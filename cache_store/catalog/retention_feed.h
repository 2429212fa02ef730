// RetentionFeed: tells the eviction policy (retention.h) which restore points exist, which were
// used, and which may be evicted.
//
// Not thread safe: the store's lock guards it. Ownership: owns the policy, borrows the restore
// points. Invariant: the policy has exactly the points whose `listed` is true.
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

  // `index` has the restore points' nodes, by which the feed finds the points of keys. It outlives
  // this feed.
  RetentionFeed(RetentionPolicy policy, const PrefixIndex* index)
      : retention_(MakeRetention(policy, Retention::Depend::kNothing)), index_(index) {}

  // Call before the restore points of one publish are added. `tokens`: length of the prompt.
  void BeginPublish(uint32_t tokens);
  void Add(RestorePointEntry* point, absl::Time now);
  // Adds a restore point that existed before the restart. REQUIRES: its last use is earlier than
  // the last use of all points added so far.
  void Adopt(RestorePointEntry* point, absl::Time used, absl::Time now);
  // Removes the restore point from the policy, if it was added. `may_return`: the policy remembers
  // the point, to learn from its return.
  void Remove(const RestorePointEntry& point, bool may_return);
  // Call when the restore point becomes evictable or is no longer evictable.
  void Update(const RestorePointEntry& point);
  // Sets the weight of the restore point in the eviction order: its priority or, if `is_kept`,
  // above all other points of the tenant.
  void Weigh(const RestorePointEntry& point, bool is_kept);

  // Records a use of these restore points, shortest prefix first.
  void Renew(const std::vector<RestorePointEntry*>& path, absl::Time now);
  // Records a request for a prompt. Stored restore points of the prompt count as used; evicted
  // points that the policy remembers count as returned.
  void Request(const PromptChain& chain, uint32_t tokens, absl::Time now);

  // Offers evictable restore points to `take`, least valuable first, until `take` accepts one.
  // Returns the accepted point, or null.
  RestorePointEntry* Visit(Take take) const;
  RestorePointEntry* VisitOwned(Retention::Owner owner, Take take) const;
  // Returns whether the restore point would be offered first, so that it is the next to be evicted.
  bool IsFirstVictim(const RestorePointEntry& point) const;

  size_t size() const { return size_; }
  bool Contains(const RestorePointEntry& point) const;
  // Returns the number of points in the policy; used only by the catalog's self-check.
  size_t held() const { return retention_->held(); }

 private:
  void SetListed(RestorePointEntry* point);
  // Offers the point of `key` to `take`; if accepted, sets `*taken` to the point.
  Retention::Answer Offer(Retention::Key key, Take take, RestorePointEntry** taken) const;

  const std::unique_ptr<Retention> retention_;
  const PrefixIndex* const index_;
  size_t size_ = 0;            // number of restore points in the policy
  Retention::Prompt publish_;  // the publish whose restore points are being added
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_RETENTION_FEED_H_
