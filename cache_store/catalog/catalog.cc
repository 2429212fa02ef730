#include "cache_store/catalog/catalog.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

namespace hearth {
Catalog::Catalog(const Limits& limits, TenantQuotas quotas, OnRemoved on_removed)
    : limits_(limits),
      on_removed_(std::move(on_removed)),
      ledger_(std::move(quotas)),
      feed_(limits.retention) {}

void Catalog::ReserveNumbersBelow(uint64_t number) {
  next_number_ = std::max(next_number_, number);
}

StoredObject* Catalog::NewObject(uint64_t number, const Digest& key, const ObjectId& id,
                                 std::vector<uint64_t> slice_digests, std::vector<uint32_t> layers,
                                 uint64_t slice_bytes) {
  assert(slice_digests.size() == layers.size() && number < next_number_);
  auto object = std::make_unique<StoredObject>();
  object->number = number;
  object->key = key;
  object->id = id;
  object->slice_digests = std::move(slice_digests);
  object->layers = std::move(layers);
  object->slice_bytes = slice_bytes;
  object->sessions = 1;
  object_bytes_ += object->bytes();
  StoredObject* raw = object.get();
  const bool inserted = objects_.emplace(number, std::move(object)).second;
  assert(inserted);
  (void)inserted;
  return raw;
}

void Catalog::Link(StoredObject* object, SegmentNode* node) {
  StoredObject*& place = node->objects[static_cast<size_t>(object->id.group)];
  assert(place == nullptr && object->node == nullptr && node->key == object->key);
  place = object;
  object->node = node;
}

StoredObject* Catalog::FindObject(uint64_t number) const {
  const auto it = objects_.find(number);
  return it == objects_.end() ? nullptr : it->second.get();
}

void Catalog::Hold(StoredObject* object) {
  const Change change(this, object);
  ++object->sessions;
}

void Catalog::Release(StoredObject* object) {
  {
    const Change change(this, object);
    assert(object->sessions > 0);
    --object->sessions;
  }
  if (object->sessions > 0) return;
  if (object->restore_points == 0) {
    FreeIfUnused(object);
  } else if (object->host_restore_points == 0 && object->in_host && object->on_disk) {
    DropHostCopy(object);
  }
}

void Catalog::HoldPoint(RestorePointEntry* point) {
  const Change change(this, point);
  ++point->sessions;
}

void Catalog::ReleasePoint(RestorePointEntry* point) {
  const Change change(this, point);
  assert(point->sessions > 0);
  --point->sessions;
}

void Catalog::FreeIfUnused(StoredObject* object) {
  if (object->restore_points > 0 || object->sessions > 0) return;
  if (object->in_host) ForgetHostCopy(object);
  if (object->on_disk) {
    garbage_.disk_objects.push_back(object->number);
    garbage_.disk_bytes += object->disk_cost_bytes();
    const Change change(this, object);
    object->on_disk = false;
    if (!object->read_on_disk) disk_flow_.unread_bytes += object->stored_bytes();
  } else if (object->begun_on_disk) {
    garbage_.disk_objects.push_back(object->number);
  }
  assert(object->account == nullptr);
  Unlink(object);
  garbage_.gone_objects.push_back(object->number);
  object_bytes_ -= object->bytes();
  objects_.erase(object->number);
}

void Catalog::Retire(StoredObject* object) {
  assert(object->sessions > 0 && object->restore_points == 0);
  object->retired = true;
  garbage_.gone_objects.push_back(object->number);
  Unlink(object);
}

void Catalog::Unlink(StoredObject* object) {
  SegmentNode* node = object->node;
  if (node == nullptr) return;
  assert(object->restore_points == 0);
  object->node = nullptr;
  node->objects[static_cast<size_t>(object->id.group)] = nullptr;
  index_.Prune(node);
}

void Catalog::ForgetHostCopy(StoredObject* object) {
  assert(object->in_host);
  {
    const Change change(this, object);
    object->in_host = false;
  }
  if (!object->read_in_host) host_flow_.unread_bytes += object->bytes();
  garbage_.host_objects.push_back(object->number);
}

void Catalog::DropHostCopy(StoredObject* object) {
  assert(object->on_disk);
  if (object->in_host) ForgetHostCopy(object);
}

RestorePointEntry* Catalog::AddRestorePoint(uint64_t number, const std::string& tenant,
                                            std::shared_ptr<const KnownFingerprint> model,
                                            SegmentNode* node, std::vector<StoredObject*> objects,
                                            std::vector<uint32_t> cuts, absl::Time now) {
  assert(node->restore_point == nullptr && !objects.empty());
  auto owned = std::make_unique<RestorePointEntry>();
  RestorePointEntry* point = owned.get();
  point->number = point->manifest = number;
  point->id = node->key;
  point->tenant = tenant;
  point->account = ledger_.AccountOf(tenant);
  ++point->account->usage.restore_points;
  points_of_[tenant].insert(point);
  point->model = std::move(model);
  point->node = node;
  point->objects = std::move(objects);
  point->cuts = std::move(cuts);
  point->last_use = point->last_touch = point->noted = now;
  point->expires = InheritedExpiry(point->objects, now);
  point->tick = ++tick_;
  point->manifest_cost_bytes = ManifestCostBytes(node->end(), tenant.size(), point->objects);
  node->restore_point = point;
  expiry_.Add(point);
  if (!is_adopting_) feed_.Add(point, now);
  for (StoredObject* object : point->objects) {
    assert(object->node != nullptr && (object->in_host || object->on_disk));
    Charge(object, point->account);
    CountName(Retention::Scope::kStore, object, point, 1);
  }
  const bool inserted = points_.emplace(point->id, std::move(owned)).second;
  assert(inserted);
  (void)inserted;
  return point;
}

RestorePointEntry* Catalog::Find(const Digest& id) const {
  const auto it = points_.find(id);
  return it == points_.end() ? nullptr : it->second.get();
}

void Catalog::Remove(RestorePointEntry* point, Removal why) {
  on_removed_(*point, why);
  if (IsEviction(why)) ++evicted_;
  SetPinned(point, false);
  expiry_.Remove(*point);
  used_.erase(point);
  if (point->durable) {
    garbage_.manifests.push_back(point->manifest);
    const Change change(this, point);
    point->durable = false;
  }
  SegmentNode* node = point->node;
  node->restore_point = nullptr;
  const bool was_resident = point->in_host;
  const std::vector<StoredObject*> objects = std::move(point->objects);
  for (StoredObject* object : objects) {
    CountName(Retention::Scope::kStore, object, point, -1);
    if (was_resident) CountName(Retention::Scope::kHost, object, point, -1);
    // The node of the last object may be pruned here; `node` is not used after.
    if (object->restore_points == 0) {
      Uncharge(object);
      FreeIfUnused(object);
    } else if (was_resident && object->host_restore_points == 0 && object->sessions == 0 &&
               object->in_host && object->on_disk) {
      DropHostCopy(object);
    }
  }
  feed_.Remove(*point, MayReturn(why));
  const auto siblings = points_of_.find(point->tenant);
  siblings->second.erase(point);
  if (siblings->second.empty()) points_of_.erase(siblings);
  --point->account->usage.restore_points;
  ledger_.Settle(point->account);
  points_.erase(Digest(point->id));
}

void Catalog::Renew(RestorePointEntry* point, absl::Time expires) {
  expiry_.Remove(*point);
  point->expires = point->inherited ? expires : std::max(point->expires, expires);
  point->inherited = false;
  expiry_.Add(point);
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
  expiry_.Remove(*point);
  ++point->renewals;
}

void Catalog::EndRenewal(RestorePointEntry* point) {
  assert(point->renewals > 0);
  --point->renewals;
  expiry_.Add(point);
}

void Catalog::SetInHost(StoredObject* object) {
  assert(!object->in_host);
  const Change change(this, object);
  object->in_host = true;
  object->read_in_host = false;
  host_flow_.written_bytes += object->bytes();
}

void Catalog::SetOnDisk(StoredObject* object, uint64_t compressed_bytes) {
  AdoptOnDisk(object, compressed_bytes);
  object->read_on_disk = false;
  disk_flow_.written_bytes += object->stored_bytes();
}

void Catalog::AdoptOnDisk(StoredObject* object, uint64_t compressed_bytes) {
  assert(!object->on_disk && compressed_bytes <= object->bytes());
  const Change change(this, object);
  object->compressed_bytes = compressed_bytes;
  object->on_disk = true;
  object->read_on_disk = true;
}

void Catalog::SetDurable(RestorePointEntry* point) {
  assert(!point->durable);
  const Change change(this, point);
  point->durable = true;
}

void Catalog::SetResident(RestorePointEntry* point) {
  if (point->in_host) return;
  point->in_host = true;
  for (StoredObject* object : point->objects) {
    assert(object->in_host || object->on_disk);
    CountName(Retention::Scope::kHost, object, point, 1);
  }
}

void Catalog::SetPinned(RestorePointEntry* point, bool pinned) {
  if (point->pinned == pinned) return;
  expiry_.Remove(*point);
  {
    const Change change(this, point);
    point->pinned = pinned;
  }
  expiry_.Add(point);
  feed_.Update(*point);
  for (StoredObject* object : point->objects) {
    const Change change(this, object);
    object->pins += pinned ? 1 : -1;
  }
}

uint64_t Catalog::BytesToPin(const RestorePointEntry& point) const {
  uint64_t bytes = 0;
  for (const StoredObject* object : point.objects) {
    if (object->pins == 0) bytes += object->bytes();
  }
  return bytes;
}

void Garbage::Add(const Garbage& other) {
  const auto append = [](std::vector<uint64_t>* to, const std::vector<uint64_t>& from) {
    to->insert(to->end(), from.begin(), from.end());
  };
  append(&host_objects, other.host_objects);
  append(&disk_objects, other.disk_objects);
  append(&manifests, other.manifests);
  append(&gone_objects, other.gone_objects);
  disk_bytes += other.disk_bytes;
}

Garbage Catalog::TakeGarbage() { return std::exchange(garbage_, Garbage{}); }

std::vector<uint64_t> Catalog::TakeHostGarbage() {
  return std::exchange(garbage_.host_objects, {});
}

std::vector<RestorePointEntry*> Catalog::PointsOf(const std::string& tenant) const {
  const auto found = points_of_.find(tenant);
  if (found == points_of_.end()) return {};
  std::vector<RestorePointEntry*> points(found->second.begin(), found->second.end());
  std::sort(points.begin(), points.end(),
            [](const RestorePointEntry* a, const RestorePointEntry* b) {
              return std::make_tuple(a->tick, ~a->tokens(), a->number) <
                     std::make_tuple(b->tick, ~b->tokens(), b->number);
            });
  return points;
}

std::vector<const RestorePointEntry*> Catalog::MostHit(size_t limit) const {
  std::vector<const RestorePointEntry*> most;
  most.reserve(points_.size());
  for (const auto& [id, point] : points_) most.push_back(point.get());
  limit = std::min(limit, most.size());
  std::partial_sort(most.begin(), most.begin() + static_cast<ptrdiff_t>(limit), most.end(),
                    [](const RestorePointEntry* a, const RestorePointEntry* b) {
                      return a->hits != b->hits ? a->hits > b->hits : a->tick > b->tick;
                    });
  most.resize(limit);
  return most;
}

// Whatever names it goes through its segment.
std::vector<RestorePointEntry*> Catalog::PointsNaming(const StoredObject* object) const {
  std::vector<RestorePointEntry*> points;
  std::vector<const SegmentNode*> left;
  if (object->node != nullptr) left.push_back(object->node);
  while (!left.empty()) {
    const SegmentNode* node = left.back();
    left.pop_back();
    left.insert(left.end(), node->children.begin(), node->children.end());
    RestorePointEntry* point = node->restore_point;
    if (point == nullptr) continue;
    const auto& named = point->objects;
    if (std::find(named.begin(), named.end(), object) != named.end()) points.push_back(point);
  }
  assert(points.size() == object->restore_points);
  return points;
}

}  // namespace hearth
