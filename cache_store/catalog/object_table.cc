#include "cache_store/catalog/object_table.h"

#include <algorithm>
#include <cassert>
#include <tuple>

namespace hearth {
namespace {

// Returns the RAM of the bookkeeping that is freed with an object. The object of the global layers
// includes its segment's node, without the cut offsets.
uint64_t CostWithNode(const StoredObject& object) {
  uint64_t bytes = StoredObject::CostBytes(object.layers().size());
  if (object.id.group == LayerGroup::kGlobal) {
    bytes += PrefixIndex::NodeCostBytes(object.id.tokens, 0);
  }
  return bytes;
}

}  // namespace

void StorageSums::UnreserveHost(uint64_t bytes) {
  assert(host_reserved_ >= bytes);
  host_reserved_ -= bytes;
}

void StorageSums::UnreserveDisk(uint64_t bytes) {
  assert(disk_reserved_ >= bytes);
  disk_reserved_ -= bytes;
}

void StorageSums::UnreservePoints(uint64_t bytes) {
  assert(points_reserved_ >= bytes);
  points_reserved_ -= bytes;
}

void StorageSums::CountInTiers(const StoredObject& object, uint64_t times) {
  const uint64_t bytes = times * object.bytes();
  const bool is_pinned = object.pins > 0;
  const bool is_held = object.sessions > 0;
  if (object.in_host()) {
    sums_.host_bytes += bytes;
    sums_.host_objects += times;
    if (is_held || (is_pinned && !object.on_disk)) {
      sums_.host_kept_bytes += bytes;
      sums_.kept_copy_bytes += times * StoredObject::HostCopyCostBytes(object.layers().size());
    }
    if (is_held || !object.on_disk) sums_.host_fixed_bytes += bytes;
  }
  if (object.on_disk) {
    const uint64_t cost = times * object.disk_cost_bytes();
    sums_.disk_bytes += cost;
    sums_.disk_objects += times;
    if (is_held || is_pinned) sums_.disk_kept_bytes += cost;
  }
  if (is_pinned) sums_.pinned_bytes += bytes;
  if (object.names > 0 && !is_held && !is_pinned) {
    sums_.evictable_point_bytes += times * CostWithNode(object);
  }
}

void StorageSums::Count(const StoredObject& object, uint64_t times) {
  CountInTiers(object, times);
  if (object.account == nullptr) return;
  const uint64_t bytes = times * object.bytes();
  const bool is_pinned = object.pins > 0;
  TenantAccount& account = *object.account;
  if (is_pinned) account.usage.pinned_bytes += bytes;
  if (object.names > 0) {
    account.usage.bytes += bytes;
    account.usage.objects += times;
    if (object.sessions == 0 && !is_pinned) return;
    account.kept.bytes += bytes;
    account.kept.objects += times;
  } else if (object.promised > 0) {
    account.promised.bytes += bytes;
    account.promised.objects += times;
  }
}

void StorageSums::Count(const RestorePointEntry& point, uint64_t times) {
  const bool is_kept = point.pinned || point.sessions > 0;
  if (!is_kept) sums_.evictable_point_bytes += times * point.cost_bytes();
  if (!point.durable) return;
  const uint64_t cost = times * point.manifest_cost_bytes;
  sums_.disk_bytes += cost;
  if (is_kept) sums_.disk_kept_bytes += cost;
}

bool StorageSums::SameInTiers(const StorageSums& other) const {
  const auto all = [](const Sums& sums) {
    return std::tie(sums.host_bytes, sums.host_kept_bytes, sums.host_fixed_bytes, sums.host_objects,
                    sums.disk_bytes, sums.disk_kept_bytes, sums.disk_objects, sums.pinned_bytes,
                    sums.evictable_point_bytes, sums.kept_copy_bytes);
  };
  return all(sums_) == all(other.sums_);
}

void ObjectTable::ReserveNumbersBelow(uint64_t number) {
  next_number_ = std::max(next_number_, number);
}

StoredObject* ObjectTable::NewObject(uint64_t number, const Digest& key, const ObjectId& id,
                                     absl::Span<const uint64_t> slice_digests,
                                     const std::vector<uint32_t>& layers, uint64_t slice_bytes,
                                     const std::string& publisher) {
  assert(slice_digests.size() == layers.size() && number < next_number_);
  std::unique_ptr<StoredObject> object =
      StoredObject::Make(number, key, id, layers_.Take(layers), slice_digests, slice_bytes,
                         publisher.empty() ? nullptr : publishers_.Take(publisher));
  object->sessions = 1;
  bytes_ += object->bytes();
  cost_bytes_ += StoredObject::CostBytes(layers.size());
  const auto [it, inserted] = objects_.insert(std::move(object));
  assert(inserted);
  return it->get();
}

void ObjectTable::Link(StoredObject* object, SegmentNode* node) {
  StoredObject*& place = node->objects[static_cast<size_t>(object->id.group)];
  assert(place == nullptr && !object->retired);
  place = object;
  object->TakeKeyOf(node);
}

void ObjectTable::Unlink(StoredObject* object) {
  SegmentNode* node = object->node;
  if (node == nullptr) return;
  assert(object->names == 0);
  object->KeepOwnKey();
  node->objects[static_cast<size_t>(object->id.group)] = nullptr;
  index_.Prune(node);
}

void ObjectTable::Retire(StoredObject* object) {
  assert(object->sessions > 0 && object->names == 0 && !object->retired);
  object->retired = true;
  garbage_.gone_objects.push_back(object->number);
  Unlink(object);
}

StoredObject* ObjectTable::Find(uint64_t number) const {
  const auto it = objects_.find(number);
  return it == objects_.end() ? nullptr : it->get();
}

void ObjectTable::Hold(StoredObject* object) {
  const Change change(&sums_, object);
  ++object->sessions;
}

void ObjectTable::Release(StoredObject* object) {
  {
    const Change change(&sums_, object);
    assert(object->sessions > 0);
    --object->sessions;
  }
  DropUnneeded(object);
}

void ObjectTable::DropUnneeded(StoredObject* object) {
  if (object->names > 0) return;
  Uncharge(object);
  if (object->sessions == 0) Free(object);
}

void ObjectTable::Free(StoredObject* object) {
  assert(object->account == nullptr && object->pins == 0);
  assert(object->names == 0 && object->sessions == 0);
  if (object->in_host()) ForgetHostCopy(object);
  if (object->on_disk) {
    garbage_.disk_objects.push_back(object->number);
    garbage_.disk_bytes += object->disk_cost_bytes();
    const Change change(&sums_, object);
    object->on_disk = false;
    if (!object->disk.read) disk_flow_.unread_bytes += object->bytes();
  } else if (object->disk.begun) {
    garbage_.disk_objects.push_back(object->number);
  }
  Unlink(object);
  garbage_.gone_objects.push_back(object->number);
  assert(bytes_ >= object->bytes());
  bytes_ -= object->bytes();
  cost_bytes_ -= StoredObject::CostBytes(object->layers().size());
  const std::vector<uint32_t>* const layers = &object->layers();
  const std::string* const publisher = object->publisher();
  objects_.erase(objects_.find(object->number));
  layers_.Release(layers);
  if (publisher != nullptr) publishers_.Release(publisher);
}

void ObjectTable::SetInHost(StoredObject* object, HostCopy slices) {
  assert(!object->in_host() && slices->size() == object->layers().size());
  const Change change(&sums_, object);
  copy_cost_bytes_ += StoredObject::HostCopyCostBytes(object->layers().size());
  object->host = std::move(slices);
  object->ram.read = false;
  AddSpare(object);
  host_flow_.written_bytes += object->bytes();
}

void ObjectTable::SetOnDisk(StoredObject* object) {
  AdoptOnDisk(object);
  object->disk.read = false;
  disk_flow_.written_bytes += object->bytes();
}

void ObjectTable::AdoptOnDisk(StoredObject* object) {
  assert(!object->on_disk);
  const Change change(&sums_, object);
  object->on_disk = true;
  object->disk.read = true;
  AddSpare(object);
}

void ObjectTable::AddSpare(StoredObject* object) {
  if (!object->has_spare()) return;
  object->spare_before = last_spare_;
  object->spare_after = nullptr;
  (last_spare_ != nullptr ? last_spare_->spare_after : first_spare_) = object;
  last_spare_ = object;
}

void ObjectTable::RemoveSpare(StoredObject* object) {
  StoredObject* const before = std::exchange(object->spare_before, nullptr);
  StoredObject* const after = std::exchange(object->spare_after, nullptr);
  (before != nullptr ? before->spare_after : first_spare_) = after;
  (after != nullptr ? after->spare_before : last_spare_) = before;
}

void ObjectTable::NoteUse(StoredObject* object) {
  if (!object->has_spare()) return;
  RemoveSpare(object);
  AddSpare(object);
}

void ObjectTable::DropSpareCopies(uint64_t most_bytes) {
  StoredObject* next = first_spare_;
  while (next != nullptr && sums_.host_bytes() > most_bytes) {
    StoredObject* const object = std::exchange(next, next->spare_after);
    if (object->sessions > 0) continue;
    ForgetHostCopy(object);
    ++demoted_;
  }
}

void ObjectTable::ForgetHostCopy(StoredObject* object) {
  if (object->has_spare()) RemoveSpare(object);
  const Change change(&sums_, object);
  copy_cost_bytes_ -= StoredObject::HostCopyCostBytes(object->layers().size());
  garbage_.host_copies.push_back(std::exchange(object->host, nullptr));
  if (!object->ram.read) host_flow_.unread_bytes += object->bytes();
}

void ObjectTable::DropHostCopy(StoredObject* object) {
  assert(object->on_disk);
  if (object->in_host()) ForgetHostCopy(object);
}

void ObjectTable::ChangeNames(StoredObject* object, int by) {
  const Change change(&sums_, object);
  assert(by > 0 || object->names > 0);
  object->names += static_cast<uint32_t>(by);
}

void ObjectTable::ChangePins(StoredObject* object, int by) {
  const Change change(&sums_, object);
  assert(by > 0 || object->pins > 0);
  object->pins += static_cast<uint32_t>(by);
}

void ObjectTable::KeepUntil(StoredObject* object, absl::Time expires) {
  object->keep_until = std::max<absl::Time>(object->keep_until, expires);
}

void ObjectTable::Charge(StoredObject* object, TenantAccount* account) {
  assert(object->account == nullptr || object->account == account);
  object->account = account;
}

void ObjectTable::Uncharge(StoredObject* object) {
  if (object->names > 0 || object->promised > 0) return;
  TenantAccount* const account = std::exchange(object->account, nullptr);
  if (account != nullptr) accounts_.RemoveIfEmpty(account);
}

void ObjectTable::Promise(StoredObject* object, TenantAccount* account) {
  assert(object->sessions > 0);
  Charge(object, account);
  const Change change(&sums_, object);
  ++object->promised;
}

void ObjectTable::Unpromise(const std::vector<StoredObject*>& objects) {
  for (StoredObject* object : objects) {
    {
      const Change change(&sums_, object);
      assert(object->promised > 0);
      --object->promised;
    }
    Uncharge(object);
  }
}

}  // namespace hearth
