#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/store/calls/publish_commit.h"
#include "proto/restore_rule.h"

namespace hearth {

void PublishRevealer::Reveal() {
  state_->mu.AssertHeld();
  assert(plan_->work.objects.size() == plan_->work.compressed_bytes.size());
  const bool written = plan_->level != Durability::kMemory;
  for (size_t i = 0; i < plan_->work.objects.size(); ++i) {
    state_->objects.SetOnDisk(plan_->work.objects[i], plan_->work.compressed_bytes[i]);
  }
  if (!written) {
    // RAM is their only home, and was reserved: before anything else competes for it.
    for (const PublishBoundary& kept : plan_->boundaries) {
      for (const size_t i : kept.items) {
        const PublishItem& item = content_->items[i];
        if (item.complete() && !item.object->in_host && !item.object->on_disk) {
          core_->PutInHost(item.object, item.staged);
        }
      }
    }
  }
  state_->catalog.feed().BeginPublish(static_cast<uint32_t>(content_->spec.token_ids.size()));
  std::vector<PublishBoundary> shown;
  for (PublishBoundary& kept : plan_->boundaries) {
    // A point that was there already is left out when it was dropped while this wrote.
    const RestorePointEntry* known = state_->catalog.Find(kept.segment->key);
    const bool is_dropped = kept.held && (known == nullptr || known->number != kept.number);
    if (is_dropped || !IsWhole(kept)) {
      plan_->notes.push_back(absl::StrCat(
          "boundary ", kept.boundary,
          " left out: ", is_dropped ? "it was dropped meanwhile" : "an object was lost meanwhile"));
      if (kept.write) state_->objects.DiscardManifest(kept.manifest);
      continue;
    }
    SegmentNode* end = LinkBoundary(kept);
    std::vector<const StoredObject*> objects;
    for (const size_t i : kept.items) objects.push_back(content_->items[i].object);
    const RestorePointEntry* point = end->restore_point;
    const bool is_new = point == nullptr;
    if (is_new) {
      point = state_->catalog.AddRestorePoint(
          kept.number, content_->spec.tenant, content_->model, end, std::move(objects),
          content_->CutsUpTo(kept.boundary), core_->clock->Now());
      state_->catalog.Renew(point, kept.expires);
      core_->Count(Counter::kPublishedRestorePoints);
    } else if (point->expiry.inherited || kept.expires > point->expiry.at) {
      state_->catalog.Renew(point, kept.expires);
      if (point->durable) plan_->renewed.push_back(point->id);
    }
    const bool is_made_durable = kept.write && !point->durable;
    if (is_made_durable) {
      // A lookup may have made the point meanwhile: this manifest is its.
      state_->catalog.SetManifest(point, kept.manifest);
      state_->catalog.SetDurable(point);
      if (point->pinned) plan_->newly_durable_pins.push_back(point->manifest);
    }
    state_->catalog.HoldPoint(point);  // not evicted to make room for itself
    if (AdmitToHost(kept)) state_->catalog.SetResident(point);
    state_->catalog.ReleasePoint(point);
    if (!point->durable) plan_->shown.push_back(point->id);
    state_->catalog.Touch(point, core_->clock->Now());
    // Only now is the record what a list would show.
    if (is_new) {
      core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
    } else if (is_made_durable) {
      core_->events.Post(StoreEvent::Kind::kDurable, core_->Describe(*point));
    }
    shown.push_back(std::move(kept));
  }
  plan_->boundaries = std::move(shown);
}

bool PublishRevealer::IsWhole(const PublishBoundary& kept) const {
  return std::all_of(kept.items.begin(), kept.items.end(), [&](const size_t i) {
    const StoredObject* object = content_->items[i].object;
    return !object->retired && (object->in_host || object->on_disk);
  });
}

// Makes the path of a boundary and puts its new objects into it.
SegmentNode* PublishRevealer::LinkBoundary(const PublishBoundary& kept) {
  state_->mu.AssertHeld();
  PrefixIndex& index = state_->catalog.index();
  const uint32_t chunk_tokens = content_->model->layout.chunk_tokens;
  SegmentNode* node = index.EnsureRoot(content_->chain.root);
  size_t next = 0;  // items come in order of their segments
  for (const Segment& segment : SegmentsTo(kept.boundary, chunk_tokens)) {
    node = index.Ensure(node, *content_->chain.EndingAt(segment.end(), chunk_tokens),
                        content_->spec.token_ids);
    assert(node != nullptr);  // AdoptStaged ruled collisions out, and the keys are claimed
    for (; next < kept.items.size(); ++next) {
      const StoredObject* object = content_->items[kept.items[next]].object;
      if (object->id.begin != segment.begin) break;
      if (object->node == nullptr) state_->objects.Link(object, node);
    }
  }
  assert(next == kept.items.size());
  return node;
}

// Puts what this publish brought into RAM, if the whole restore point can then be read from there.
bool PublishRevealer::AdmitToHost(const PublishBoundary& kept) {
  state_->mu.AssertHeld();
  uint64_t bytes = 0;
  for (const size_t i : kept.items) {
    const PublishItem& item = content_->items[i];
    if (item.object->in_host) continue;
    if (!item.complete()) return false;  // on the disk only: the next fetch promotes it
    bytes += item.object->bytes();
  }
  if (!state_->evictor.ReserveHost(bytes, content_->spec.tenant)) return false;
  state_->evictor.UnreserveHost(bytes);
  for (const size_t i : kept.items) {
    const PublishItem& item = content_->items[i];
    if (!item.object->in_host && !core_->PutInHost(item.object, item.staged)) return false;
  }
  return true;
}

}  // namespace hearth
