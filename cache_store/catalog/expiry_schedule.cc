#include "cache_store/catalog/expiry_schedule.h"

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

// Time to live of an implicit restore point whose objects are kept only by another point's pin. A
// later lookup creates the restore point again.
constexpr absl::Duration kUnderPin = absl::Minutes(10);

}  // namespace

absl::Time InheritedEnd(const StoredObject& object, absl::Time now) {
  const absl::Time keep_until = object.keep_until;
  return object.pins == 0 ? keep_until : std::max(keep_until, now + kUnderPin);
}

absl::Time InheritedExpiry(absl::Span<StoredObject* const> objects, absl::Time now) {
  absl::Time expires = absl::InfiniteFuture();
  for (StoredObject* object : objects) {
    expires = std::min(expires, InheritedEnd(*object, now));
  }
  return expires;
}

bool MayExpire(const RestorePointEntry& point) {
  return point.expiry.at != absl::InfiniteFuture() && !point.pinned && point.expiry.renewals == 0;
}

bool HasExpired(const RestorePointEntry& point, absl::Time now) {
  return MayExpire(point) && point.expiry.at <= now;
}

void ExpirySchedule::Add(RestorePointEntry* point) {
  if (!MayExpire(*point)) return;
  const auto time = std::make_pair<absl::Time>(point->expiry.at, uint64_t{point->number});
  const bool is_new = points_.emplace(time, point).second;
  assert(is_new);  // callers remove a point before they change its expiry
}

void ExpirySchedule::Remove(const RestorePointEntry& point) {
  points_.erase({point.expiry.at, point.number});
}

absl::Time ExpirySchedule::next() const {
  return points_.empty() ? absl::InfiniteFuture() : points_.begin()->first.first;
}

RestorePointEntry* ExpirySchedule::FirstExpired(absl::Time now) const {
  return next() <= now ? points_.begin()->second : nullptr;
}

bool ExpirySchedule::Contains(const RestorePointEntry& point) const {
  const auto it = points_.find({point.expiry.at, point.number});
  return it != points_.end() && it->second == &point;
}

}  // namespace hearth
