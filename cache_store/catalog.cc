#include "cache_store/catalog.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

namespace hearth {
namespace {

// What one entry costs on disk beside its payload. A slice: 12 bytes of key, 8 of sequence, some 20
// of blob reference in the table, 32 + 12 of header and key in the blob file: 84, rounded up. A
// record: its fixed fields, tag and checksum, rounded up.
constexpr uint64_t kSliceOverheadBytes = 128;
constexpr uint64_t kRecordOverheadBytes = 256;

}  // namespace

uint64_t StoredObject::disk_cost_bytes() const {
  return stored_bytes() + kRecordOverheadBytes + slice_digests.size() * (kSliceOverheadBytes + 8);
}

uint64_t RestorePointEntry::bytes() const {
  uint64_t sum = 0;
  for (const StoredObject* object : objects) sum += object->bytes();
  return sum;
}

uint64_t ManifestCostBytes(uint32_t tokens, size_t tenant_bytes,
                           const std::vector<StoredObject*>& objects) {
  // Tokens and, at worst, as many cuts; of an object its id, number and digests.
  uint64_t sum = kRecordOverheadBytes + tenant_bytes + 8 * uint64_t{tokens};
  for (const StoredObject* object : objects) sum += 32 + 8 * object->slice_digests.size();
  return sum;
}

uint64_t RestorePointEntry::manifest_cost_bytes() const {
  return ManifestCostBytes(tokens(), tenant.size(), objects);
}

Tier RestorePointEntry::slowest_tier() const {
  for (const StoredObject* object : objects) {
    if (!object->in_host) return Tier::kDisk;
  }
  return Tier::kHost;
}

Catalog::Catalog(const Limits& limits, TenantQuotas quotas, OnRemoved on_removed)
    : limits_(limits),
      on_removed_(std::move(on_removed)),
      ledger_(std::move(quotas)),
      retention_(MakeRetention(limits.retention, Retention::Depend::kNothing)) {}

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
  held_bytes_ += object->disk_cost_bytes();
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
  if (object->sessions++ == 0) held_bytes_ += object->disk_cost_bytes();
}

void Catalog::Release(StoredObject* object) {
  assert(object->sessions > 0);
  --object->sessions;
  if (object->sessions > 0) return;
  held_bytes_ -= object->disk_cost_bytes();
  if (object->restore_points == 0) {
    FreeIfUnused(object);
  } else if (object->host_restore_points == 0 && object->in_host && object->on_disk) {
    DropHostCopy(object);
  }
}

void Catalog::FreeIfUnused(StoredObject* object) {
  if (object->restore_points > 0 || object->sessions > 0) return;
  if (object->in_host) ForgetHostCopy(object);
  if (object->on_disk) {
    garbage_.disk_objects.push_back(object->number);
    garbage_.disk_bytes += object->disk_cost_bytes();
    disk_bytes_ -= object->disk_cost_bytes();
    --disk_objects_;
    if (!object->read_on_disk) disk_flow_.unread_bytes += object->stored_bytes();
  }
  Unlink(object);
  object_bytes_ -= object->bytes();
  objects_.erase(object->number);
}

void Catalog::Retire(StoredObject* object) {
  assert(object->sessions > 0 && object->restore_points == 0);
  object->retired = true;
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
  assert(object->in_host && host_bytes_ >= object->bytes());
  object->in_host = false;
  host_bytes_ -= object->bytes();
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
  point->number = number;
  point->id = node->key;
  point->tenant = tenant;
  point->model = std::move(model);
  point->node = node;
  point->objects = std::move(objects);
  point->cuts = std::move(cuts);
  point->last_use = now;
  point->tick = ++tick_;
  node->restore_point = point;
  Enlist(point, now);
  for (StoredObject* object : point->objects) {
    assert(object->node != nullptr && (object->in_host || object->on_disk));
    if (object->restore_points == 0) ledger_.AddObject(tenant, object->bytes());
    CountName(object, point, 1);
  }
  ledger_.AddPoint(tenant);
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
  if (point->durable) {
    garbage_.manifests.push_back(point->number);
    disk_bytes_ -= point->manifest_cost_bytes();
  }
  SegmentNode* node = point->node;
  node->restore_point = nullptr;
  const bool was_resident = point->in_host;
  const std::vector<StoredObject*> objects = std::move(point->objects);
  const std::string tenant = std::move(point->tenant);
  ledger_.RemovePoint(tenant);
  for (StoredObject* object : objects) {
    CountName(object, point, -1);
    if (was_resident) CountHostName(object, point, -1);
    // The node of the last object may be pruned here; `node` is not used after.
    if (object->restore_points == 0) {
      ledger_.RemoveObject(tenant, object->bytes());
      FreeIfUnused(object);
    } else if (was_resident && object->host_restore_points == 0 && object->sessions == 0 &&
               object->in_host && object->on_disk) {
      DropHostCopy(object);
    }
  }
  Delist(point, IsEviction(why));
  points_.erase(Digest(point->id));
}

void Catalog::SetInHost(StoredObject* object) {
  assert(!object->in_host);
  object->in_host = true;
  object->read_in_host = false;
  host_bytes_ += object->bytes();
  host_flow_.written_bytes += object->bytes();
}

void Catalog::SetOnDisk(StoredObject* object, uint64_t compressed_bytes) {
  AdoptOnDisk(object, compressed_bytes);
  object->read_on_disk = false;
  disk_flow_.written_bytes += object->stored_bytes();
}

void Catalog::AdoptOnDisk(StoredObject* object, uint64_t compressed_bytes) {
  assert(!object->on_disk && compressed_bytes <= object->bytes());
  if (object->sessions > 0) held_bytes_ -= object->disk_cost_bytes();
  object->compressed_bytes = compressed_bytes;
  if (object->sessions > 0) held_bytes_ += object->disk_cost_bytes();
  object->on_disk = true;
  object->read_on_disk = true;
  disk_bytes_ += object->disk_cost_bytes();
  ++disk_objects_;
}

void Catalog::SetDurable(RestorePointEntry* point) {
  assert(!point->durable);
  point->durable = true;
  disk_bytes_ += point->manifest_cost_bytes();
}

void Catalog::SetResident(RestorePointEntry* point) {
  if (point->in_host) return;
  point->in_host = true;
  for (StoredObject* object : point->objects) {
    assert(object->in_host);
    CountHostName(object, point, 1);
  }
}

void Catalog::SetPinned(RestorePointEntry* point, bool pinned) {
  if (point->pinned == pinned) return;
  point->pinned = pinned;
  UpdateOffered(point);
  for (StoredObject* object : point->objects) {
    if (pinned && object->pins++ == 0) {
      pinned_bytes_ += object->bytes();
      ledger_.AddPinned(point->tenant, object->bytes());
    }
    if (!pinned && --object->pins == 0) {
      pinned_bytes_ -= object->bytes();
      ledger_.RemovePinned(point->tenant, object->bytes());
    }
  }
}

uint64_t Catalog::BytesToPin(const RestorePointEntry& point) const {
  uint64_t bytes = 0;
  for (const StoredObject* object : point.objects) {
    if (object->pins == 0) bytes += object->bytes();
  }
  return bytes;
}

Garbage Catalog::TakeGarbage() { return std::exchange(garbage_, Garbage{}); }

std::vector<uint64_t> Catalog::TakeHostGarbage() {
  return std::exchange(garbage_.host_objects, {});
}

std::vector<RestorePointEntry*> Catalog::PointsOf(const std::string& tenant) const {
  std::vector<RestorePointEntry*> points;
  for (const auto& [id, point] : points_) {
    if (point->tenant == tenant) points.push_back(point.get());
  }
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

std::vector<RestorePointEntry*> Catalog::PointsNaming(const StoredObject* object) const {
  std::vector<RestorePointEntry*> points;
  for (const auto& [id, point] : points_) {
    const auto& named = point->objects;
    if (std::find(named.begin(), named.end(), object) != named.end()) points.push_back(point.get());
  }
  return points;
}

void Catalog::CheckInvariants() const {
  uint64_t host = 0, disk = 0, all = 0, pinned = 0, held = 0;
  for (const auto& [number, object] : objects_) {
    assert(number == object->number && (object->restore_points > 0 || object->sessions > 0));
    assert(object->restore_points == 0 || (object->in_host || object->on_disk));
    assert(object->host_restore_points <= object->restore_points);
    if (object->in_host) host += object->bytes();
    if (object->on_disk) disk += object->disk_cost_bytes();
    if (object->sessions > 0) held += object->disk_cost_bytes();
    if (object->pins > 0) pinned += object->bytes();
    all += object->bytes();
  }
  absl::flat_hash_map<const StoredObject*, uint32_t> named, pinning;
  absl::flat_hash_map<std::string, TenantUsage> usage;
  for (const auto& [id, point] : points_) {
    assert(point->node->restore_point == point.get() && point->node->key == id);
    ++usage[point->tenant].restore_points;
    if (point->durable) disk += point->manifest_cost_bytes();
    for (const StoredObject* object : point->objects) {
      assert(!object->retired && object->node != nullptr);
      assert(!point->in_host || object->in_host);
      TenantUsage& tenant = usage[point->tenant];
      if (++named[object] == 1) {
        ++tenant.objects;
        tenant.bytes += object->bytes();
      }
      if (point->pinned && ++pinning[object] == 1) tenant.pinned_bytes += object->bytes();
    }
  }
  for (const auto& [object, count] : named) assert(object->restore_points == count);
  for (const auto& [number, object] : objects_) {
    const auto it = pinning.find(object.get());
    assert(object->pins == (it == pinning.end() ? 0 : it->second));
  }
  assert(host == host_bytes_ && disk == disk_bytes_ && all == object_bytes_);
  assert(pinned == pinned_bytes_ && held == held_bytes_);
  for (const auto& [tenant, counted] : usage) assert(ledger_.UsageOf(tenant) == counted);
  CheckSole();
}

}  // namespace hearth
