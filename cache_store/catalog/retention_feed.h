// RetentionFeed: tells the retention policy which restore points there are, which were used, and
// which would free room.
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

  // `index`: of the restore points, by whose keys the policy knows them; it outlives this.
  RetentionFeed(RetentionPolicy policy, const PrefixIndex* index)
      : retention_(MakeRetention(policy, Retention::Depend::kNothing)), index_(index) {}

  // The restore points added from here on are of one prompt.
  void BeginPublish(uint32_t tokens);
  void Add(RestorePointEntry* point, absl::Time now);
  // A point from before a restart. REQUIRES: its last use is earlier than those of all points added
  // so far.
  void Adopt(RestorePointEntry* point, absl::Time used, absl::Time now);
  // Does nothing when it was not added. `may_return`: the policy remembers it.
  void Remove(const RestorePointEntry& point, bool may_return);
  // To be called when it becomes evictable, or stops being so.
  void Update(const RestorePointEntry& point);
  // By its priority or, while it is kept, above all others of its tenant.
  void Weigh(const RestorePointEntry& point, bool is_kept);

  // These were used, root first.
  void Renew(const std::vector<RestorePointEntry*>& path, absl::Time now);
  // A prompt was asked for, whatever is stored of it: its stored boundaries count as used, its
  // remembered ones as returned.
  void Request(const PromptChain& chain, uint32_t tokens, absl::Time now);

  // Offers restore points, the least worth keeping first, until one is taken; null: none was.
  RestorePointEntry* Visit(Take take) const;
  RestorePointEntry* VisitOwned(Retention::Owner owner, Take take) const;
  // Whether it would be offered first.
  bool IsLeastWorth(const RestorePointEntry& point) const;

  size_t size() const { return size_; }
  bool Contains(const RestorePointEntry& point) const;
  // For the catalog's own checks: in the policy.
  size_t held() const { return retention_->held(); }

 private:
  void SetListed(RestorePointEntry* point);
  // Asks `take`, and notes in `taken` what it takes.
  Retention::Answer Offer(Retention::Key key, Take take, RestorePointEntry** taken) const;

  const std::unique_ptr<Retention> retention_;
  const PrefixIndex* const index_;
  size_t size_ = 0;            // listed points
  Retention::Prompt publish_;  // the one that adds restore points
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_RETENTION_FEED_H_
