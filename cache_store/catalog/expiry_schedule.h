// ExpirySchedule: the restore points ordered by expiry. Publishing a restore point again can only
// extend its expiry. A restore point that no publish requested (a lookup created it) expires with
// the first of its objects.
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

// InheritedEnd: until when an object is wanted. InheritedExpiry: the expiry of a restore point that
// no publish requested: the earliest InheritedEnd of its objects.
absl::Time InheritedEnd(const StoredObject& object, absl::Time now);
absl::Time InheritedExpiry(absl::Span<StoredObject* const> objects, absl::Time now);

// Returns whether the restore point has an expiry, is not pinned, and no running publish renews it.
bool MayExpire(const RestorePointEntry& point);
bool HasExpired(const RestorePointEntry& point, absl::Time now);

class ExpirySchedule {
 public:
  // Adds the restore point; does nothing if !MayExpire().
  void Add(RestorePointEntry* point);
  // Call before the expiry, the pin or the renewals of the restore point change, and before its
  // removal.
  void Remove(const RestorePointEntry& point);

  // Returns the time of the next expiry; InfiniteFuture if there is none.
  absl::Time next() const;
  // Returns the restore point with the earliest expiry if it has expired; otherwise null.
  RestorePointEntry* FirstExpired(absl::Time now) const;

  // Used only by the catalog's self-check.
  size_t size() const { return points_.size(); }
  bool Contains(const RestorePointEntry& point) const;

 private:
  // keys: expiry and number of the point
  std::map<std::pair<absl::Time, uint64_t>, RestorePointEntry*> points_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_EXPIRY_SCHEDULE_H_
