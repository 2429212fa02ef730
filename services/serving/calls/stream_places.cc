#include "services/serving/calls/stream_places.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/serving/calls/stream_limit.h"

namespace hearth {

StreamPlaces::StreamPlaces(Options options, Clock* clock)
    : options_(std::move(options)), clock_(clock == nullptr ? &steady_clock_ : clock) {}

StreamPlaces::~StreamPlaces() {
  absl::MutexLock lock(&mutex_);
  assert(places_.empty() && open_ == 0);
}

void StreamPlaces::SetClock(Clock* clock) {
  assert(open() == 0);
  clock_ = clock;
}

void StreamPlaces::SetWindow(absl::Duration window) {
  assert(open() == 0);
  options_.window = window;
}

void StreamPlaces::BeginWindow(Place* place, absl::Time now) {
  mutex_.AssertHeld();
  place->since_ = now;
  place->moved_before_ = place->moved_.load(std::memory_order_relaxed);
}

double StreamPlaces::RateOf(const Place& place, absl::Time now) const {
  mutex_.AssertHeld();
  const absl::Duration time = now - place.since_;
  if (time < options_.grace && place.has_rate_) return place.bytes_per_s_;
  const uint64_t moved = place.moved_.load(std::memory_order_relaxed) - place.moved_before_;
  return static_cast<double>(moved) / absl::ToDoubleSeconds(time);
}

StreamPlaces::EndStream StreamPlaces::TakeSlowest(const std::string* tenant,
                                                  const std::string& newcomer) {
  mutex_.AssertHeld();
  const absl::Time now = clock_->Now();
  const int tenants = static_cast<int>(of_tenant_.size()) + (of_tenant_.count(newcomer) == 0);
  const int share = options_.all / std::max(1, tenants);
  Place* slowest = nullptr;
  bool slowest_is_over = false;
  double slowest_rate = 0;
  for (Place* const place : places_) {
    if (!place->counted_ || !place->waits_.load(std::memory_order_relaxed)) continue;
    if (tenant != nullptr && place->tenant_ != *tenant) continue;
    if (now - place->since_ < options_.grace && !place->has_rate_) continue;
    const double rate = RateOf(*place, now);
    if (rate >= static_cast<double>(options_.slow_bytes_per_s)) continue;
    const bool is_over = of_tenant_[place->tenant_] > share;
    const bool is_worse = slowest == nullptr || (is_over && !slowest_is_over) ||
                          (is_over == slowest_is_over && rate < slowest_rate);
    if (!is_worse) continue;
    slowest = place;
    slowest_is_over = is_over;
    slowest_rate = rate;
  }
  if (slowest == nullptr) return nullptr;
  Uncount(slowest);
  return slowest->end_;
}

absl::Status StreamPlaces::Displaced() const {
  return absl::ResourceExhaustedError(
      absl::StrCat(options_.kind,
                   ": another caller has its place now, since this one was the "
                   "slowest of ",
                   options_.all, "; try again later"));
}

absl::StatusOr<std::unique_ptr<StreamPlaces::Place>> StreamPlaces::Enter(const Identity& caller,
                                                                         EndStream end) {
  const bool is_worker = caller.sees_all() && caller.role != Role::kNobody;
  const std::string tenant = caller.sees_all() ? "" : caller.tenant;
  EndStream displaced;
  std::unique_ptr<Place> place;
  {
    absl::MutexLock lock(&mutex_);
    const auto of_tenant = of_tenant_.find(tenant);
    if (!tenant.empty() && options_.each_tenant > 0 && of_tenant != of_tenant_.end() &&
        of_tenant->second >= options_.each_tenant) {
      displaced = TakeSlowest(&tenant, tenant);
      if (displaced == nullptr) {
        return TenantIsAtLimit(options_.kind, options_.each_tenant, tenant);
      }
    } else if (options_.all > 0 && open_ >= options_.all) {
      displaced = TakeSlowest(nullptr, tenant);
      if (displaced == nullptr) return AllAreAtLimit(options_.kind, options_.all);
    }
    place.reset(new Place(this, is_worker, std::move(end)));
    place->tenant_ = tenant;
    BeginWindow(place.get(), clock_->Now());
    places_.push_back(place.get());
    ++of_tenant_[tenant];
    ++open_;
    assert(options_.all <= 0 || open_ <= options_.all);
  }
  if (displaced != nullptr) displaced(Displaced());
  return place;
}

absl::Status StreamPlaces::Assign(Place* place, const std::string& tenant) {
  EndStream displaced;
  {
    absl::MutexLock lock(&mutex_);
    if (!place->is_worker_ || !place->counted_ || place->tenant_ == tenant) {
      return absl::OkStatus();
    }
    const int most = options_.all - options_.all / 4;
    const auto it = of_tenant_.find(tenant);
    if (options_.all > 0 && it != of_tenant_.end() && it->second >= most) {
      displaced = TakeSlowest(&tenant, tenant);
      if (displaced == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat(options_.kind, ": ", most, " streams of tenant \"", tenant,
                         "\" are open, its share; try again later"));
      }
    }
    const auto before = of_tenant_.find(place->tenant_);
    assert(before != of_tenant_.end() && before->second > 0);
    if (--before->second == 0) of_tenant_.erase(before);
    place->tenant_ = tenant;
    ++of_tenant_[tenant];
  }
  if (displaced != nullptr) displaced(Displaced());
  return absl::OkStatus();
}

void StreamPlaces::EndSlow() {
  std::vector<std::pair<EndStream, absl::Status>> ended;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    for (Place* const place : places_) {
      if (!place->counted_) continue;
      const bool waits = place->waits_.load(std::memory_order_relaxed);
      if (waits && now - place->since_ < options_.window) continue;
      const uint64_t moved = place->moved_.load(std::memory_order_relaxed) - place->moved_before_;
      if (waits && moved < options_.floor_bytes) {
        Uncount(place);
        ended.emplace_back(
            place->end_, absl::DeadlineExceededError(absl::StrCat(
                             options_.kind, ": its caller moved ", moved, " bytes in ",
                             absl::FormatDuration(now - place->since_), "; the least is ",
                             options_.floor_bytes, " in ", absl::FormatDuration(options_.window))));
        continue;
      }
      if (waits) {
        place->bytes_per_s_ = RateOf(*place, now);
        place->has_rate_ = true;
      }
      BeginWindow(place, now);
    }
  }
  for (const auto& [end, status] : ended) end(status);
}

void StreamPlaces::MakeRoom() {
  EndStream displaced;
  {
    absl::MutexLock lock(&mutex_);
    displaced = TakeSlowest(nullptr, "");
  }
  if (displaced != nullptr) displaced(Displaced());
}

int StreamPlaces::open() const {
  absl::MutexLock lock(&mutex_);
  return open_;
}

void StreamPlaces::Uncount(Place* place) {
  mutex_.AssertHeld();
  if (!std::exchange(place->counted_, false)) return;
  const auto it = of_tenant_.find(place->tenant_);
  assert(open_ > 0 && it != of_tenant_.end() && it->second > 0);
  --open_;
  if (--it->second == 0) of_tenant_.erase(it);
}

void StreamPlaces::Release(Place* place) {
  absl::MutexLock lock(&mutex_);
  Uncount(place);
  places_.remove(place);
}

}  // namespace hearth
