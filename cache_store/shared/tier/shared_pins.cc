#include "cache_store/shared/tier/shared_pins.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cache_store/shared/shared_lives.h"

namespace hearth {

absl::Duration SharedPins::Interval() const {
  return std::max(absl::Seconds(1), options_.ttl / SharedLives::kPinRenewals);
}

bool SharedPins::MakeRoom(const RestorePoint& point) {
  if (kept_.contains(point.id)) return true;
  if (point.bytes > options_.pin_bytes - kept_bytes_) {
    parts_.counters->Add(Counter::kSharedPinsOverLimit);
    return false;
  }
  kept_.emplace(point.id, point.bytes);
  kept_bytes_ += point.bytes;
  return true;
}

void SharedPins::Add(const RestorePoint& point) {
  {
    absl::MutexLock lock(&mu_);
    if (!MakeRoom(point)) return;
  }
  RenewPoint(point, true);
}

void SharedPins::Remove(const Digest& id) {
  absl::MutexLock lock(&mu_);
  const auto found = kept_.find(id);
  if (found == kept_.end()) return;
  kept_bytes_ -= found->second;
  kept_.erase(found);
}

void SharedPins::Renew() {
  std::vector<RestorePoint> points = parts_.store->Pinned();
  {
    absl::MutexLock lock(&mu_);
    const auto end =
        std::stable_partition(points.begin(), points.end(), [this](const RestorePoint& point) {
          mu_.AssertHeld();
          return kept_.contains(point.id);
        });
    std::sort(end, points.end(),
              [](const RestorePoint& a, const RestorePoint& b) { return a.id < b.id; });
    kept_.clear();
    kept_bytes_ = 0;
    const auto has_no_room = [this](const RestorePoint& point) {
      mu_.AssertHeld();
      return !MakeRoom(point);
    };
    points.erase(std::remove_if(points.begin(), points.end(), has_no_room), points.end());
  }
  for (const RestorePoint& point : points) RenewPoint(point, false);
}

void SharedPins::RenewPoint(const RestorePoint& point, bool is_new) {
  const auto session = parts_.store->FetchById(point.id, point.tenant);
  if (!session.ok()) return;  // it left meanwhile
  parts_.writer->NoteExport();
  const LookupPlan& plan = (*session)->plan();
  SharedWork work;
  work.fingerprint = point.fingerprint;
  work.layout = plan.layout;
  work.tenant = point.tenant;
  work.token_ids = plan.token_ids;
  work.cuts = plan.cuts;
  work.boundaries = {plan.usable_tokens};
  work.pinned = true;
  work.is_new_pin = is_new;
  parts_.writer->WriteBehind(std::move(work));
  parts_.counters->Add(Counter::kSharedPinsRenewed);
}

}  // namespace hearth
