// When restore points are over. Each has an end of its own, which publishing it again only moves
// further away; what nobody published as a whole ends with the first of its parts.
#include <algorithm>
#include <cassert>

#include "cache_store/catalog/catalog.h"

namespace hearth {
namespace {

// What is there thanks to a pin alone: a boundary below it is given so long at a time.
constexpr absl::Duration kUnderPin = absl::Minutes(10);

bool MayExpire(const RestorePointEntry& point) {
  return point.expires != absl::InfiniteFuture() && !point.pinned && point.renewals == 0;
}

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

void Catalog::Schedule(RestorePointEntry* point) {
  if (MayExpire(*point)) expiring_[{point->expires, point->number}] = point;
}

void Catalog::Unschedule(const RestorePointEntry& point) {
  expiring_.erase({point.expires, point.number});
}

void Catalog::Renew(RestorePointEntry* point, absl::Time expires) {
  Unschedule(*point);
  point->expires = point->inherited ? expires : std::max(point->expires, expires);
  point->inherited = false;
  Schedule(point);
  for (StoredObject* object : point->objects) {
    object->keep_until = std::max(object->keep_until, point->expires);
  }
}

// What it inherited its end from may be gone: then its own is what is known of until when somebody
// wanted its objects.
void Catalog::AdoptEnd(RestorePointEntry* point, absl::Time expires, bool inherited) {
  Renew(point, expires);
  point->inherited = inherited;
}

void Catalog::BeginRenewal(RestorePointEntry* point) {
  Unschedule(*point);
  ++point->renewals;
}

void Catalog::EndRenewal(RestorePointEntry* point) {
  assert(point->renewals > 0);
  --point->renewals;
  Schedule(point);
}

absl::Time Catalog::next_expiry() const {
  return expiring_.empty() ? absl::InfiniteFuture() : expiring_.begin()->first.first;
}

bool Catalog::IsOver(const RestorePointEntry& point, absl::Time now) {
  return MayExpire(point) && point.expires <= now;
}

RestorePointEntry* Catalog::FirstExpired(absl::Time now) const {
  return next_expiry() <= now ? expiring_.begin()->second : nullptr;
}

void Catalog::CheckExpiry() const {
  size_t scheduled = 0;
  for (const auto& [id, point] : points_) {
    if (!MayExpire(*point)) continue;
    ++scheduled;
    assert(expiring_.at({point->expires, point->number}) == point.get());
  }
  assert(scheduled == expiring_.size());
  for (const RestorePointEntry* point : used_) {
    assert(Find(point->id) == point);
    (void)point;
  }
}

}  // namespace hearth
