#include "cache_store/catalog/expiry_schedule.h"

#include <algorithm>

namespace hearth {
namespace {

// A boundary kept alive only by a pin gets this lifetime; a use after it makes the boundary anew.
constexpr absl::Duration kUnderPin = absl::Minutes(10);

}  // namespace

absl::Time InheritedExpiry(const std::vector<StoredObject*>& objects, absl::Time now) {
  absl::Time expires = absl::InfiniteFuture();
  for (const StoredObject* object : objects) {
    absl::Time until = object->keep_until;
    if (object->pins > 0) until = std::max(until, now + kUnderPin);
    expires = std::min(expires, until);
  }
  return expires;
}

bool MayExpire(const RestorePointEntry& point) {
  return point.expires != absl::InfiniteFuture() && !point.pinned && point.renewals == 0;
}

bool HasExpired(const RestorePointEntry& point, absl::Time now) {
  return MayExpire(point) && point.expires <= now;
}

void ExpirySchedule::Add(RestorePointEntry* point) {
  if (MayExpire(*point)) points_[{point->expires, point->number}] = point;
}

void ExpirySchedule::Remove(const RestorePointEntry& point) {
  points_.erase({point.expires, point.number});
}

absl::Time ExpirySchedule::next() const {
  return points_.empty() ? absl::InfiniteFuture() : points_.begin()->first.first;
}

RestorePointEntry* ExpirySchedule::FirstExpired(absl::Time now) const {
  return next() <= now ? points_.begin()->second : nullptr;
}

bool ExpirySchedule::Contains(const RestorePointEntry& point) const {
  const auto it = points_.find({point.expires, point.number});
  return it != points_.end() && it->second == &point;
}

}  // namespace hearth
