#include "cache_store/catalog/eviction_plan.h"

namespace hearth {

using Answer = Retention::Answer;

uint32_t EvictionPlan::NamesLeft(const StoredObject* object) const {
  const auto found = left_.find(object);
  return (found == left_.end() ? object->names : found->second).count;
}

// With its last name.
bool EvictionPlan::IsFreed(const StoredObject* object) const {
  return (of_disk_ ? object->on_disk : object->in_host) && object->sessions == 0;
}

Answer EvictionPlan::Offer(const RestorePointEntry* point) {
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

void EvictionPlan::Plan(const RestorePointEntry* point) {
  planned_.insert(point);
  victims_.push_back(point);
  if (of_disk_ && point->durable) freed_bytes_ += point->manifest_cost_bytes;
  for (const StoredObject* object : point->objects) {
    NameCount& left = left_.try_emplace(object, object->names).first->second;
    left.Change(point, -1);
    if (left.count == 1) alone_.push_back(left.only());
    if (left.count > 0) continue;
    freed_usage_[point->account] += object->bytes();
    if (IsFreed(object)) freed_bytes_ += of_disk_ ? object->disk_cost_bytes() : object->bytes();
  }
}

void EvictionPlan::OfferWhatIsLeft() {
  for (size_t i = 0; i < alone_.size() && !IsEnough(); ++i) Offer(alone_[i]);
}

}  // namespace hearth
