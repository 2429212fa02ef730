// Committing a publish: claim, make room, write, show. Nothing is visible before `Show`.
#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/store/sessions.h"

namespace hearth {

absl::StatusOr<PublishResult> Store::CommitPublish(PublishSessionImpl* session) {
  PublishPlan plan;
  Durability asked = session->spec_.durability;
  if (asked == Durability::kDefault) asked = core_->options.default_durability;
  plan.level = core_->tiers.disk == nullptr ? Durability::kMemory : asked;
  if (plan.level < session->spec_.durability) {
    plan.notes.push_back("no disk tier: kept in memory only");
  }
  absl::Status status;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    ClaimFor(session, &plan);
    status = AdoptStaged(session);
    if (status.ok()) {
      ChooseBoundaries(session, &plan);
      status = MakeRoom(session, &plan);
    }
    if (!status.ok()) {
      EndPlan(&plan);
      state_->flight.Release(plan.claims);
    }
  }
  core_->eraser.EraseFromDisk().IgnoreError();
  if (!status.ok()) return status;

  if (plan.level != Durability::kMemory) {
    for (const StoredObject* object : plan.work.objects) {
      if (status.ok()) status = ViewsFor(session, object, &plan.work.views.emplace_back());
    }
    if (status.ok()) status = Write(&plan.work, plan.level == Durability::kSync);
  }
  std::vector<uint64_t> orphans;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    state_->catalog.UnreserveDisk(plan.work.reserved_bytes);
    state_->catalog.UnreserveHost(plan.host_reserved_bytes);
    EndPlan(&plan);
    if (status.ok()) {
      Show(session, &plan);
    } else {
      orphans = AbandonWrite(plan.work);
    }
  }
  if (!status.ok()) core_->Count(Counter::kTierErrors);
  core_->eraser.EraseFromDisk(orphans).IgnoreError();
  for (const uint64_t number : plan.newly_durable_pins) PersistPin(number, true).IgnoreError();
  const absl::Status renewed = WriteRenewals(plan);
  {
    // Only now: what a failed write left was erased, and is another publisher's to write again.
    absl::MutexLock lock(&state_->mu);
    state_->flight.Release(plan.claims);
  }
  if (!status.ok()) return status;
  WakeWaiters(plan);
  if (!renewed.ok()) return renewed;
  if (core_->tiers.disk != nullptr && plan.level == Durability::kMemory && !plan.shown.empty()) {
    ScheduleWriteBehind(plan.shown, plan.shown_bytes);
  }
  PublishResult result;
  result.durable = plan.level;
  for (const PublishBoundary& kept : plan.boundaries) result.boundaries.push_back(kept.boundary);
  result.bytes_received = session->received_bytes_;
  result.notes = std::move(plan.notes);
  core_->Count(Counter::kPublishedBytes, result.bytes_received);
  return result;
}

void Store::ClaimFor(PublishSessionImpl* session, PublishPlan* plan) {
  for (const PublishItem& item : session->items_) {
    const bool on_disk = item.object != nullptr && item.object->on_disk;
    if (!on_disk) plan->claims.push_back(item.segment->key);
  }
  const uint32_t chunk_tokens = session->model_->layout.chunk_tokens;
  for (const uint32_t boundary : session->spec_.boundaries) {
    plan->claims.push_back(session->chain_.EndingAt(boundary, chunk_tokens)->key);
  }
  state_->flight.Claim(&state_->mu, plan->claims);
}

// Gives every complete staged object a place, or finds that another publisher was first.
absl::Status Store::AdoptStaged(PublishSessionImpl* session) {
  const PublishSpec& spec = session->spec_;
  const auto publisher = std::make_shared<const std::string>(spec.publisher);
  for (size_t i = 0; i < session->items_.size(); ++i) {
    PublishItem& item = session->items_[i];
    if (item.object != nullptr) {
      item.lost = item.object->retired;
      continue;
    }
    if (!item.complete()) continue;
    const ObjectId& id = spec.objects[i].id;
    SegmentNode* known = state_->catalog.index().Find(item.segment->key);
    SegmentNode* node = state_->catalog.index().Find(*item.segment, spec.token_ids);
    if (known != node) {
      return absl::InternalError("another prompt is stored under the same key");
    }
    StoredObject* object = node == nullptr ? nullptr : node->objects[static_cast<size_t>(id.group)];
    if (object == nullptr) {
      item.object =
          state_->catalog.NewObject(state_->catalog.NextNumber(), item.segment->key, id,
                                    spec.objects[i].slice_digests, item.layers, item.slice_bytes);
      item.object->publisher = publisher;
      continue;
    }
    // Portable points agree within rounding: the first stays.
    if (object->slice_digests != spec.objects[i].slice_digests &&
        BitsFollowKeys(session->model_->layout.exactness)) {
      core_->Count(Counter::kNondeterminism);
      return absl::AbortedError(
          "an object was stored meanwhile with other bytes under the same key: nondeterminism");
    }
    state_->catalog.Hold(object);
    item.object = object;
  }
  return absl::OkStatus();
}

void Store::ChooseBoundaries(PublishSessionImpl* session, PublishPlan* plan) {
  const KvLayout& layout = session->model_->layout;
  for (size_t place = 0; place < session->needs_.size(); ++place) {
    const uint32_t boundary = session->spec_.boundaries[place];
    PublishBoundary kept;
    kept.boundary = boundary;
    kept.segment = session->chain_.EndingAt(boundary, layout.chunk_tokens);
    kept.items = session->needs_[place];
    size_t missing = 0;
    for (const size_t i : kept.items) {
      if (session->items_[i].object == nullptr || session->items_[i].lost) ++missing;
    }
    if (missing > 0) {
      plan->notes.push_back(absl::StrCat("boundary ", boundary, " left out: ", missing, " of ",
                                         kept.items.size(), " objects did not arrive"));
      continue;
    }
    plan->boundaries.push_back(std::move(kept));
  }
}

absl::Status Store::ReserveQuota(PublishSessionImpl* session, PublishPlan* plan) {
  absl::flat_hash_set<const StoredObject*> listed;
  uint64_t new_bytes = 0, new_objects = 0;
  for (const PublishBoundary& kept : plan->boundaries) {
    for (const size_t i : kept.items) {
      StoredObject* object = session->items_[i].object;
      if (!listed.insert(object).second) continue;
      plan->promised.push_back(object);
      if (object->restore_points > 0) continue;
      ++new_objects;
      new_bytes += object->bytes();
    }
  }
  const std::string& tenant = session->spec_.tenant;
  if (state_->catalog.Promise(tenant, plan->promised)) return absl::OkStatus();
  plan->promised.clear();
  core_->Count(Counter::kPublishesRefusedQuota);
  return state_->catalog.ledger().NoRoom(tenant, new_bytes, new_objects);
}

// Reserves RAM or disk for what is new, and lists what is to be written.
absl::Status Store::MakeRoom(PublishSessionImpl* session, PublishPlan* plan) {
  uint64_t new_bytes = 0;
  std::vector<StoredObject*> unwritten;
  absl::flat_hash_set<const StoredObject*> listed;
  uint64_t disk_bytes = 0;
  const absl::Time now = core_->clock->Now();
  plan->expires = ExpiryOf(session->spec_, now, &plan->notes);
  for (PublishBoundary& kept : plan->boundaries) {
    RestorePointEntry* point = state_->catalog.Find(kept.segment->key);
    if (point != nullptr && Catalog::IsOver(*point, now)) {
      state_->catalog.Remove(point, Removal::kExpired);
      point = nullptr;
    }
    kept.held = point != nullptr;
    kept.expires = plan->expires;
    if (kept.held) {
      state_->catalog.HoldPoint(point);
      state_->catalog.BeginRenewal(point);
      // The first who publishes it says when it ends, and others only move that further away. Who
      // asks for nothing does not make what was to end stay for good.
      const bool asks = plan->expires != absl::InfiniteFuture();
      if (!point->inherited) {
        kept.expires = asks ? std::max(plan->expires, point->expires) : point->expires;
      }
    }
    kept.number = kept.held ? point->number : state_->catalog.NextNumber();
    kept.manifest = kept.held ? point->manifest : kept.number;
    std::vector<StoredObject*> objects;
    for (const size_t i : kept.items) {
      StoredObject* object = session->items_[i].object;
      objects.push_back(object);
      if (object->on_disk || !listed.insert(object).second) continue;
      unwritten.push_back(object);
      if (!object->in_host) new_bytes += object->bytes();
      disk_bytes += object->disk_cost_bytes();
    }
    disk_bytes += ManifestCostBytes(kept.boundary, session->spec_.tenant.size(), objects);
  }
  if (absl::Status status = ReserveQuota(session, plan); !status.ok()) return status;
  if (plan->level == Durability::kMemory) {
    if (state_->catalog.ReserveHost(new_bytes, session->spec_.tenant)) {
      plan->host_reserved_bytes = plan->shown_bytes = new_bytes;
      return absl::OkStatus();
    }
    if (core_->tiers.disk == nullptr) {
      core_->Count(Counter::kPublishesRefusedFull);
      return absl::ResourceExhaustedError(
          absl::StrCat("host tier full: ", new_bytes, " bytes do not fit in host_bytes, ",
                       core_->options.host_bytes, ", beside what is pinned or in use"));
    }
    plan->level = Durability::kDisk;  // no room in RAM: the promise is kept on the disk
  }
  if (!state_->catalog.ReserveDisk(disk_bytes, session->spec_.tenant)) {
    core_->Count(Counter::kPublishesRefusedFull);
    return absl::ResourceExhaustedError(
        absl::StrCat("disk tier full: ", disk_bytes, " bytes do not fit in disk_bytes, ",
                     core_->options.disk_bytes, ", beside what is pinned or in use"));
  }
  plan->work.reserved_bytes = disk_bytes;
  plan->work.objects = std::move(unwritten);
  plan->work.fingerprint = FingerprintRecord{session->spec_.fingerprint, session->spec_.tenant};
  for (PublishBoundary& kept : plan->boundaries) {
    kept.write = !kept.held || !state_->catalog.Find(kept.segment->key)->durable;
    if (!kept.write) continue;
    plan->work.manifests.push_back(RecordFor(*session, kept));
    plan->work.points.push_back(kept.segment->key);
  }
  return absl::OkStatus();
}

ManifestRecord Store::RecordFor(const PublishSessionImpl& session, const PublishBoundary& kept) {
  ManifestRecord record;
  record.number = kept.manifest;
  record.tenant = session.spec_.tenant;
  record.created_unix_s = static_cast<uint64_t>(absl::ToUnixSeconds(core_->clock->Now()));
  record.expires_unix_s = ExpiresUnixSeconds(kept.expires);
  Manifest& manifest = record.manifest;
  manifest.fingerprint = session.spec_.fingerprint.digest();
  manifest.token_count = manifest.next_position = kept.boundary;
  const auto& tokens = session.spec_.token_ids;
  manifest.token_ids.assign(tokens.begin(), tokens.begin() + kept.boundary);
  manifest.cuts = session.CutsUpTo(kept.boundary);
  for (const size_t i : kept.items) {
    const StoredObject* object = session.items_[i].object;
    record.objects.push_back(object->number);
    manifest.objects.push_back(ManifestObject{object->id, object->slice_digests});
  }
  return record;
}

// The bytes of an object that the disk lacks: staged by this publish, or in RAM from an earlier
// one.
absl::Status Store::ViewsFor(PublishSessionImpl* session, const StoredObject* object,
                             std::vector<SliceView>* views) {
  for (const PublishItem& item : session->items_) {
    if (item.object == object && item.complete()) {
      *views = item.staged;
      return absl::OkStatus();
    }
  }
  if (core_->tiers.HostViews(object, views)) return absl::OkStatus();
  return absl::UnavailableError("an object that was only in RAM could not be read back");
}

// Gives back the quota that was reserved, and the points that were held.
void Store::EndPlan(PublishPlan* plan) {
  state_->catalog.Unpromise(plan->promised);
  plan->promised.clear();
  for (const PublishBoundary& kept : plan->boundaries) {
    if (!kept.held) continue;
    RestorePointEntry* point = state_->catalog.Find(kept.segment->key);
    if (point == nullptr || point->number != kept.number) continue;
    state_->catalog.EndRenewal(point);
    state_->catalog.ReleasePoint(point);
  }
}

}  // namespace hearth
