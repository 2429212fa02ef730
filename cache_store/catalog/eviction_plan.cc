#include "cache_store/catalog/eviction_plan.h"

#include <algorithm>

namespace hearth {

using Answer = Retention::Answer;

uint32_t EvictionPlan::NamesLeft(const StoredObject* object) const {
  const auto found = names_.find(object);
  return found == names_.end() ? object->restore_points : found->second.left;
}

// With its last name.
bool EvictionPlan::IsFreed(const StoredObject* object) const {
  return (of_disk_ ? object->on_disk : object->in_host) && object->sessions == 0;
}

Answer EvictionPlan::Offer(RestorePointEntry* point) {
  if (point->pinned || point->sessions > 0 || planned_.contains(point)) return Answer::kNext;
  uint64_t leaving = 0;
  bool frees = false;
  for (const StoredObject* object : point->objects) {
    if (NamesLeft(object) != 1) continue;
    leaving += object->bytes();
    frees = frees || IsFreed(object);
  }
  if (!frees) return Answer::kNext;
  const uint64_t floor = point->account->quota.floor_bytes;
  if (floor > 0 && point->tenant != tenant_) {
    const uint64_t usage = point->account->usage.bytes - freed_usage_[point->account];
    if (usage < floor + leaving) return Answer::kNextOwner;
  }
  Plan(point);
  return IsEnough() ? Answer::kTake : Answer::kNext;
}

void EvictionPlan::Plan(RestorePointEntry* point) {
  planned_.insert(point);
  victims_.push_back(point);
  if (of_disk_ && point->durable) freed_bytes_ += point->manifest_cost_bytes;
  for (const StoredObject* object : point->objects) {
    Names& names =
        names_.try_emplace(object, Names{object->restore_points, object->points}).first->second;
    --names.left;
    names.points ^= reinterpret_cast<uintptr_t>(point);
    if (names.left == 1) alone_.push_back(reinterpret_cast<RestorePointEntry*>(names.points));
    if (names.left > 0) continue;
    freed_usage_[point->account] += object->bytes();
    if (IsFreed(object)) freed_bytes_ += of_disk_ ? object->disk_cost_bytes() : object->bytes();
  }
}

void EvictionPlan::OfferWhatIsLeft() {
  for (size_t i = 0; i < alone_.size() && !IsEnough(); ++i) Offer(alone_[i]);
}

}  // namespace hearth
