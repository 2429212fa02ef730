#include "cache_store/store/calls/publish_commit.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace hearth {

namespace {

absl::Status TierFull(absl::string_view tier, uint64_t new_bytes, uint64_t limit_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(tier, " tier full: ", new_bytes, " bytes do not fit in ", tier, "_bytes, ",
                   limit_bytes, ", beside what is pinned or in use"));
}

}  // namespace

absl::StatusOr<PublishResult> PublishCommit::Run() {
  Durability wanted = content_->spec.durability;
  if (wanted == Durability::kShared) {
    wanted = Durability::kDisk;
    plan_.notes.push_back("no shared tier: kept in this store only");
  }
  const Durability asked =
      wanted == Durability::kDefault ? core_->options.default_durability : wanted;
  plan_.level = core_->tiers.disk == nullptr ? Durability::kMemory : asked;
  if (plan_.level < wanted) plan_.notes.push_back("no disk tier: kept in memory only");
  absl::Status status;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    Claim();
    status = AdoptStaged();
    if (status.ok()) {
      ChooseBoundaries();
      status = MakeRoom();
    }
    if (!status.ok()) {
      EndPlan();
      state_->flight.Release(plan_.claims);
    }
  }
  core_->eraser.EraseFromDisk().IgnoreError();
  if (!status.ok()) return status;

  if (plan_.level != Durability::kMemory) {
    for (const StoredObject* object : plan_.work.objects) {
      if (status.ok()) status = ViewsFor(object, &plan_.work.views.emplace_back());
    }
    if (status.ok()) {
      status = parts_.manifests->Write(&plan_.work, plan_.level == Durability::kSync);
    }
  }
  std::vector<uint64_t> orphans;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    state_->evictor.UnreserveDisk(plan_.work.reserved_bytes);
    state_->evictor.UnreserveHost(plan_.host_reserved_bytes);
    EndPlan();
    if (status.ok()) {
      PublishRevealer(core_, content_, &plan_).Reveal();
    } else {
      orphans = parts_.manifests->AbandonWrite(plan_.work);
    }
  }
  if (!status.ok()) core_->Count(Counter::kTierErrors);
  core_->eraser.EraseFromDisk(orphans).IgnoreError();
  for (const uint64_t number : plan_.newly_durable_pins) {
    core_->tiers.disk->SetPinned(number, true).IgnoreError();
  }
  const absl::Status renewed = WriteRenewals();
  {
    // Only now: what a failed write left was erased, and is another publisher's to write again.
    StateLock lock(state_);
    state_->flight.Release(plan_.claims);
  }
  if (!status.ok()) return status;
  std::vector<Digest> keys;
  for (const PublishBoundary& kept : plan_.boundaries) keys.push_back(kept.segment->key);
  parts_.leases->NotePublished(keys);
  if (!renewed.ok()) return renewed;
  if (core_->tiers.disk != nullptr && plan_.level == Durability::kMemory && !plan_.shown.empty()) {
    parts_.write_behind->Schedule(plan_.shown, plan_.shown_bytes);
  }
  return Result();
}

PublishResult PublishCommit::Result() {
  PublishResult result;
  result.durable = plan_.level;
  for (const PublishBoundary& kept : plan_.boundaries) result.boundaries.push_back(kept.boundary);
  result.bytes_received = received_bytes_;
  result.notes = std::move(plan_.notes);
  core_->Count(Counter::kPublishedBytes, result.bytes_received);
  return result;
}

void PublishCommit::Claim() {
  state_->mu.AssertHeld();
  for (const PublishItem& item : content_->items) {
    const bool on_disk = item.object != nullptr && item.object->on_disk;
    if (!on_disk) plan_.claims.push_back(item.segment->key);
  }
  const uint32_t chunk_tokens = content_->model->layout.chunk_tokens;
  for (const uint32_t boundary : content_->spec.boundaries) {
    plan_.claims.push_back(content_->chain.EndingAt(boundary, chunk_tokens)->key);
  }
  state_->AwaitClaim(plan_.claims);
}

// Gives every complete staged object a place, or finds that another publisher was first.
absl::Status PublishCommit::AdoptStaged() {
  state_->mu.AssertHeld();
  const PublishSpec& spec = content_->spec;
  const auto publisher = std::make_shared<const std::string>(spec.publisher);
  for (size_t i = 0; i < content_->items.size(); ++i) {
    PublishItem& item = content_->items[i];
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
    const StoredObject* object =
        node == nullptr ? nullptr : node->objects[static_cast<size_t>(id.group)];
    if (object == nullptr) {
      item.object = state_->objects.NewObject(state_->objects.NextNumber(), item.segment->key, id,
                                              spec.objects[i].slice_digests, item.layers,
                                              item.slice_bytes, publisher);
      continue;
    }
    // Portable points agree within rounding: the first stays.
    if (object->slice_digests != spec.objects[i].slice_digests &&
        BitsFollowKeys(content_->model->layout.exactness)) {
      core_->Count(Counter::kNondeterminism);
      return absl::AbortedError(
          "an object was stored meanwhile with other bytes under the same key: nondeterminism");
    }
    state_->objects.Hold(object);
    item.object = object;
  }
  return absl::OkStatus();
}

void PublishCommit::ChooseBoundaries() {
  state_->mu.AssertHeld();
  const KvLayout& layout = content_->model->layout;
  for (size_t place = 0; place < content_->needs.size(); ++place) {
    const uint32_t boundary = content_->spec.boundaries[place];
    PublishBoundary kept;
    kept.boundary = boundary;
    kept.segment = content_->chain.EndingAt(boundary, layout.chunk_tokens);
    kept.items = content_->needs[place];
    size_t missing = 0;
    for (const size_t i : kept.items) {
      if (content_->items[i].object == nullptr || content_->items[i].lost) ++missing;
    }
    if (missing > 0) {
      plan_.notes.push_back(absl::StrCat("boundary ", boundary, " left out: ", missing, " of ",
                                         kept.items.size(), " objects did not arrive"));
      continue;
    }
    plan_.boundaries.push_back(std::move(kept));
  }
}

absl::Status PublishCommit::ReserveQuota() {
  state_->mu.AssertHeld();
  absl::flat_hash_set<const StoredObject*> listed;
  uint64_t new_bytes = 0, new_objects = 0;
  for (const PublishBoundary& kept : plan_.boundaries) {
    for (const size_t i : kept.items) {
      const StoredObject* object = content_->items[i].object;
      if (!listed.insert(object).second) continue;
      plan_.promised.push_back(object);
      if (object->names.count > 0) continue;
      ++new_objects;
      new_bytes += object->bytes();
    }
  }
  const std::string& tenant = content_->spec.tenant;
  if (state_->evictor.Promise(tenant, plan_.promised)) return absl::OkStatus();
  plan_.promised.clear();
  core_->Count(Counter::kPublishesRefusedQuota);
  return state_->catalog.ledger().NoRoom(tenant, new_bytes, new_objects);
}

// Reserves RAM or disk for what is new, and lists what is to be written.
absl::Status PublishCommit::MakeRoom() {
  state_->mu.AssertHeld();
  uint64_t new_bytes = 0;
  std::vector<const StoredObject*> unwritten;
  absl::flat_hash_set<const StoredObject*> listed;
  uint64_t disk_bytes = 0;
  const absl::Time now = core_->clock->Now();
  plan_.expires = ExpiryOf(now);
  for (PublishBoundary& kept : plan_.boundaries) {
    const RestorePointEntry* point = state_->catalog.Find(kept.segment->key);
    if (point != nullptr && HasExpired(*point, now)) {
      state_->catalog.Remove(point, Removal::kExpired);
      point = nullptr;
    }
    kept.held = point != nullptr;
    kept.expires = plan_.expires;
    if (kept.held) {
      state_->catalog.HoldPoint(point);
      state_->catalog.BeginRenewal(point);
      // The first publisher sets its end, and later ones only move it further away. A publisher
      // without a time to live does not remove an end.
      const bool asks = plan_.expires != absl::InfiniteFuture();
      if (!point->expiry.inherited) {
        kept.expires = asks ? std::max(plan_.expires, point->expiry.at) : point->expiry.at;
      }
    }
    kept.number = kept.held ? point->number : state_->objects.NextNumber();
    kept.manifest = kept.held ? point->manifest : kept.number;
    std::vector<const StoredObject*> objects;
    for (const size_t i : kept.items) {
      const StoredObject* object = content_->items[i].object;
      objects.push_back(object);
      if (object->on_disk || !listed.insert(object).second) continue;
      unwritten.push_back(object);
      if (!object->in_host) new_bytes += object->bytes();
      disk_bytes += object->disk_cost_bytes();
    }
    disk_bytes += ManifestCostBytes(kept.boundary, content_->spec.tenant.size(), objects);
  }
  if (absl::Status status = ReserveQuota(); !status.ok()) return status;
  if (plan_.level == Durability::kMemory) {
    if (state_->evictor.ReserveHost(new_bytes, content_->spec.tenant)) {
      plan_.host_reserved_bytes = plan_.shown_bytes = new_bytes;
      return absl::OkStatus();
    }
    if (core_->tiers.disk == nullptr) {
      core_->Count(Counter::kPublishesRefusedFull);
      return TierFull("host", new_bytes, core_->options.host_bytes);
    }
    plan_.level = Durability::kDisk;  // no room in RAM: the promise is kept on the disk
  }
  if (!state_->evictor.ReserveDisk(disk_bytes, content_->spec.tenant)) {
    core_->Count(Counter::kPublishesRefusedFull);
    return TierFull("disk", disk_bytes, core_->options.disk_bytes);
  }
  plan_.work.reserved_bytes = disk_bytes;
  plan_.work.objects = std::move(unwritten);
  plan_.work.fingerprint = FingerprintRecord{content_->spec.fingerprint, content_->spec.tenant};
  for (PublishBoundary& kept : plan_.boundaries) {
    kept.write = !kept.held || !state_->catalog.Find(kept.segment->key)->durable;
    if (!kept.write) continue;
    plan_.work.manifests.push_back(RecordFor(kept));
    plan_.work.points.push_back(kept.segment->key);
  }
  return absl::OkStatus();
}

ManifestRecord PublishCommit::RecordFor(const PublishBoundary& kept) {
  const PublishSpec& spec = content_->spec;
  std::vector<const StoredObject*> objects;
  for (const size_t i : kept.items) objects.push_back(content_->items[i].object);
  ManifestRecord record = ManifestWriter::NewRecord(
      kept.manifest, spec.tenant, {spec.token_ids.begin(), spec.token_ids.begin() + kept.boundary},
      objects);
  record.created_unix_s = static_cast<uint64_t>(absl::ToUnixSeconds(core_->clock->Now()));
  record.expires_unix_s = ExpiresUnixSeconds(kept.expires);
  record.manifest.fingerprint = spec.fingerprint.digest();
  record.manifest.cuts = content_->CutsUpTo(kept.boundary);
  return record;
}

// The bytes of an object that the disk lacks: staged by this publish, or in RAM from an earlier
// one.
absl::Status PublishCommit::ViewsFor(const StoredObject* object, std::vector<SliceView>* views) {
  for (const PublishItem& item : content_->items) {
    if (item.object == object && item.complete()) {
      *views = item.staged;
      return absl::OkStatus();
    }
  }
  if (core_->tiers.HostViews(object, views)) return absl::OkStatus();
  return absl::UnavailableError("an object that was only in RAM could not be read back");
}

// Gives back the quota that was reserved, and the points that were held.
void PublishCommit::EndPlan() {
  state_->mu.AssertHeld();
  state_->objects.Unpromise(plan_.promised);
  plan_.promised.clear();
  for (const PublishBoundary& kept : plan_.boundaries) {
    if (!kept.held) continue;
    const RestorePointEntry* point = state_->catalog.Find(kept.segment->key);
    if (point == nullptr || point->number != kept.number) continue;
    state_->catalog.EndRenewal(point);
    state_->catalog.ReleasePoint(point);
  }
}

absl::Time PublishCommit::ExpiryOf(absl::Time now) {
  state_->mu.AssertHeld();
  const PublishSpec& spec = content_->spec;
  const TenantQuota& quota = state_->catalog.ledger().QuotaOf(spec.tenant);
  absl::Duration ttl = spec.ttl;
  if (ttl <= absl::ZeroDuration()) {
    ttl = quota.default_ttl_s > 0 ? absl::Seconds(quota.default_ttl_s) : core_->options.default_ttl;
  }
  const absl::Duration most = absl::Seconds(quota.max_ttl_s);
  if (quota.max_ttl_s > 0 && (ttl == absl::ZeroDuration() || ttl > most)) {
    if (spec.ttl > most) {
      plan_.notes.push_back(
          absl::StrCat("ttl_s lowered to the tenant's max_ttl_s, ", quota.max_ttl_s));
    }
    ttl = most;
  }
  return ttl == absl::ZeroDuration() ? absl::InfiniteFuture() : now + ttl;
}

absl::Status PublishCommit::WriteRenewals() {
  absl::Status status;
  for (const Digest& id : plan_.renewed) {
    absl::Status written = parts_.manifests->Rewrite(id, plan_.level == Durability::kSync);
    if (!absl::IsNotFound(written)) status.Update(std::move(written));
  }
  if (status.ok()) return status;
  core_->Count(Counter::kTierErrors);
  return plan_.level == Durability::kMemory ? absl::OkStatus() : status;
}

}  // namespace hearth
