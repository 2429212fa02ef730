#include "services/serving/calls/limit.h"

#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// How often the pace of streams is looked at.
constexpr absl::Duration kLook = absl::Milliseconds(250);

}  // namespace

Limit::Limit(Options options, Clock* clock)
    : options_(std::move(options)), clock_(clock == nullptr ? &steady_clock_ : clock) {}

Limit::~Limit() {
  looker_.reset();
  absl::MutexLock lock(&mutex_);
  assert(places_.empty() && open_ == 0);
}

void Limit::SetClock(Clock* clock) {
  assert(open() == 0);
  clock_ = clock;
}

void Limit::SetWindow(absl::Duration window) {
  assert(open() == 0);
  options_.window = window;
}

void Limit::BeginWindow(Place* place, absl::Time now) {
  mutex_.AssertHeld();
  place->since_ = now;
  place->moved_before_ = place->moved_.load(std::memory_order_relaxed);
}

absl::Status Limit::CheckPlace(const std::string& tenant, int weight) const {
  mutex_.AssertHeld();
  const auto known = of_tenant_.find(tenant);
  const int own = tenant.empty() || known == of_tenant_.end() ? 0 : known->second;
  const int all = own > 0 && options_.all > 1 ? options_.all - 1 : options_.all;
  const auto refuse = [this](int limit, const std::string& whose) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.kind, ": ", limit, " streams ", whose, "; try again later"));
  };
  if (!tenant.empty() && options_.each_tenant > 0 && own + weight > options_.each_tenant) {
    return refuse(options_.each_tenant,
                  absl::StrCat("of tenant \"", tenant, "\" are open, which is its limit"));
  }
  if (options_.all > 0 && open_ + weight > all) {
    return refuse(all, "are open, which is the limit");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Limit::Place>> Limit::Enter(const Identity& caller, EndStream end,
                                                           int weight) {
  assert(weight >= 1 && (end == nullptr || weight == 1));
  const bool is_worker = caller.sees_all() && caller.role != Role::kNobody;
  const std::string tenant = caller.sees_all() ? "" : caller.tenant;
  if (end != nullptr) {
    absl::call_once(looking_, [this] {
      looker_ = std::make_unique<RepeatingThread>([this] {
        EndSlow();
        return kLook;
      });
    });
  }
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckPlace(tenant, weight); !status.ok()) return status;
  std::unique_ptr<Place> place(new Place(this, is_worker, std::move(end), weight));
  place->tenant_ = tenant;
  BeginWindow(place.get(), clock_->Now());
  place->at_ = places_.insert(places_.end(), place.get());
  of_tenant_[tenant] += weight;
  open_ += weight;
  assert(options_.all <= 0 || open_ <= options_.all);
  return place;
}

absl::Status Limit::Assign(Place* place, const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  if (!place->is_worker_ || !place->counted_ || place->tenant_ == tenant) return absl::OkStatus();
  const int most = options_.all - options_.all / 4;
  const auto it = of_tenant_.find(tenant);
  if (options_.all > 0 && it != of_tenant_.end() && it->second >= most) {
    return absl::ResourceExhaustedError(absl::StrCat(options_.kind, ": ", most,
                                                     " streams of tenant \"", tenant,
                                                     "\" are open, its share; try again later"));
  }
  const auto before = of_tenant_.find(place->tenant_);
  assert(before != of_tenant_.end() && before->second >= place->weight_);
  if ((before->second -= place->weight_) == 0) of_tenant_.erase(before);
  place->tenant_ = tenant;
  of_tenant_[tenant] += place->weight_;
  return absl::OkStatus();
}

void Limit::EndSlow() {
  std::vector<std::pair<EndStream, absl::Status>> ended;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    for (Place* const place : places_) {
      if (!place->counted_ || place->end_ == nullptr) continue;
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
      BeginWindow(place, now);
    }
  }
  for (const auto& [end, status] : ended) end(status);
}

int Limit::open() const {
  absl::MutexLock lock(&mutex_);
  return open_;
}

void Limit::Uncount(Place* place) {
  mutex_.AssertHeld();
  if (!std::exchange(place->counted_, false)) return;
  const auto it = of_tenant_.find(place->tenant_);
  assert(open_ >= place->weight_ && it != of_tenant_.end() && it->second >= place->weight_);
  open_ -= place->weight_;
  if ((it->second -= place->weight_) == 0) of_tenant_.erase(it);
}

void Limit::Release(Place* place) {
  absl::MutexLock lock(&mutex_);
  Uncount(place);
  places_.erase(place->at_);
}

}  // namespace hearth
