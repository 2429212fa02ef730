// What a reader got from the disk is put into RAM, object by object, behind its back.
//
// A session keeps the slices of one object until it has read all of them, and hands them to the
// background executor, which makes room and takes them in. A fetch that ends early has so promoted
// whole objects, and evicted no more than these needed. Room is made by demoting only: a promotion
// loses nothing.
#include <cassert>
#include <utility>

#include "cache_store/store/sessions.h"

namespace hearth {

// One that RAM cannot hold beside what must stay there would push everything else out, in vain.
void Store::BeginPromotion(RestorePointEntry* point, FetchSessionImpl* session) {
  if (state_->catalog.limits().host_bytes == 0) return;
  uint64_t bytes = 0;
  for (const StoredObject* object : point->objects) {
    if (!object->in_host) bytes += object->bytes();
  }
  if (!state_->catalog.MayDemoteFor(bytes)) {
    core_->Count(Counter::kPromotionsSkipped);
    return;
  }
  session->promotion_ = std::make_shared<Promotion>();
  session->promotion_->point_id = point->id;
  session->promotion_->point_number = point->number;
  session->kept_.resize(point->objects.size());
}

void Store::SkipPromotion(Promotion* promotion) {
  if (!promotion->skipped.exchange(true)) core_->Count(Counter::kPromotionsSkipped);
}

bool Store::ClaimPromotion(StoredObject* object, Promotion* promotion) {
  absl::MutexLock lock(&state_->mu);
  if (object->in_host || object->promoting || object->retired) return false;
  if (object->bytes() > core_->options.max_background_bytes - promoting_bytes_) {
    SkipPromotion(promotion);
    return false;
  }
  promoting_bytes_ += object->bytes();
  object->promoting = true;
  return true;
}

void Store::UnclaimPromotion(StoredObject* object) {
  assert(object->promoting && promoting_bytes_ >= object->bytes());
  promoting_bytes_ -= object->bytes();
  object->promoting = false;
}

void FetchSessionImpl::Keep(size_t object, size_t place, const SliceView& view) {
  if (promotion_ == nullptr || promotion_->no_room) return;
  Kept& kept = kept_[object];
  StoredObject* const stored = objects_[object];
  if (!std::exchange(kept.tried, true) && store_->ClaimPromotion(stored, promotion_.get())) {
    kept.slices.resize(stored->layers.size());
  }
  if (kept.slices.empty() || kept.slices[place].owner != nullptr) return;
  kept.slices[place] = view;
  if (++kept.count < kept.slices.size()) return;
  store_->Promote(promotion_, stored, std::move(kept.slices));
  kept.slices.clear();
}

void Store::Promote(std::shared_ptr<Promotion> promotion, StoredObject* object,
                    std::vector<SliceView> views) {
  {
    absl::MutexLock lock(&state_->mu);
    state_->catalog.Hold(object);
  }
  // The executor's bytes are for what would be lost without it: write-behind.
  const bool scheduled = core_->executor->TrySchedule(
      0, [this, promotion, object, views] { TakeIn(promotion.get(), object, views); });
  if (scheduled) return;
  SkipPromotion(promotion.get());
  absl::MutexLock lock(&state_->mu);
  UnclaimPromotion(object);
  state_->catalog.Release(object);  // the session holds it, too
}

RestorePointEntry* Store::PromotedPoint(const Promotion& promotion) {
  RestorePointEntry* point = state_->catalog.Find(promotion.point_id);
  return point != nullptr && point->number == promotion.point_number ? point : nullptr;
}

// The job. What was evicted is gone from RAM before its room is used.
void Store::TakeIn(Promotion* promotion, StoredObject* object, std::vector<SliceView> views) {
  bool has_room = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    RestorePointEntry* point = PromotedPoint(*promotion);
    if (point != nullptr && !object->in_host && !object->retired && !promotion->no_room) {
      state_->catalog.HoldPoint(point);  // not demoted to make room for itself
      has_room = state_->catalog.ReserveHostByDemoting(object->bytes());
      state_->catalog.ReleasePoint(point);
      if (!has_room) {
        promotion->no_room = true;
        SkipPromotion(promotion);
      }
    }
  }
  core_->tiers.host.Reap();
  if (has_room) {
    for (SliceView& view : views) view = core_->tiers.InArena(view);
  }
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    if (has_room) {
      state_->catalog.UnreserveHost(object->bytes());
      RestorePointEntry* point = PromotedPoint(*promotion);
      if (point != nullptr && !object->in_host && !object->retired && PutInHost(object, views)) {
        state_->catalog.SetResident(point);
        if (point->slowest_tier() == Tier::kHost) core_->Count(Counter::kPromotedRestorePoints);
      }
    }
    UnclaimPromotion(object);
    state_->catalog.Release(object);
  }
  core_->eraser.EraseFromDisk()
      .IgnoreError();  // here: the store may be closing, and take no job any more
}

}  // namespace hearth
