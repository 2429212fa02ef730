// ExpirySchedule: when restore points expire. Each point has its own time, which publishing the
// point again can only extend. A point that no publish named expires with the first of its objects.
#ifndef HEARTH_CACHE_STORE_CATALOG_EXPIRY_SCHEDULE_H_
#define HEARTH_CACHE_STORE_CATALOG_EXPIRY_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache_store/catalog/stored_object.h"

namespace hearth {

// InheritedExpiry: the expiry of a point that no publish named: the earliest InheritedEnd of its
// objects.
absl::Time InheritedEnd(const StoredObject& object, absl::Time now);
absl::Time InheritedExpiry(absl::Span<StoredObject* const> objects, absl::Time now);

// Returns whether the point has an expiry and is neither pinned nor about to be renewed.
bool MayExpire(const RestorePointEntry& point);
bool HasExpired(const RestorePointEntry& point, absl::Time now);

class ExpirySchedule {
 public:
  // Does nothing for a point that may not expire.
  void Add(RestorePointEntry* point);
  // Call before the point's time, pin or renewals change, and before the point is removed.
  void Remove(const RestorePointEntry& point);

  // Returns when the next point expires; InfiniteFuture if none does.
  absl::Time next() const;
  // Returns the first expired point, or null.
  RestorePointEntry* FirstExpired(absl::Time now) const;

  // For the catalog's own checks.
  size_t size() const { return points_.size(); }
  bool Contains(const RestorePointEntry& point) const;

 private:
  std::map<std::pair<absl::Time, uint64_t>, RestorePointEntry*> points_;  // by expiry, then number
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EXPIRY_SCHEDULE_H_
