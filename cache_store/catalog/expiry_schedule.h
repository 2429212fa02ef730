// ExpirySchedule: when restore points expire. Each has its own time, which publishing it again can
// only move later; a point that nobody published as a whole expires with the first of its parts.
//
// Not thread safe: the store guards it. Ownership: borrows the restore points.
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

// The end of a point that nobody published as a whole: the first end among its objects.
absl::Time InheritedEnd(const StoredObject& object, absl::Time now);
absl::Time InheritedExpiry(absl::Span<StoredObject* const> objects, absl::Time now);

// It has an end, and is neither pinned nor about to be renewed.
bool MayExpire(const RestorePointEntry& point);
bool HasExpired(const RestorePointEntry& point, absl::Time now);

class ExpirySchedule {
 public:
  // Does nothing for one that may not expire.
  void Add(RestorePointEntry* point);
  // To be called before its time, its pin or its renewals change, and before it is removed.
  void Remove(const RestorePointEntry& point);

  // When the next one expires; InfiniteFuture: none does.
  absl::Time next() const;
  // One that has expired; null: none has.
  RestorePointEntry* FirstExpired(absl::Time now) const;

  // For the catalog's own checks.
  size_t size() const { return points_.size(); }
  bool Contains(const RestorePointEntry& point) const;

 private:
  std::map<std::pair<absl::Time, uint64_t>, RestorePointEntry*> points_;  // then by number
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EXPIRY_SCHEDULE_H_
