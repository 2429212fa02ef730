// The sums that the catalog keeps along the way: each follows from the state of objects and restore
// points alone, so that whatever changes one of them changes every sum it is in.
#include <cassert>

#include "cache_store/catalog/catalog.h"

namespace hearth {

void Catalog::Count(const StoredObject& object, uint64_t times) {
  const uint64_t bytes = times * object.bytes();
  const bool is_pinned = object.pins > 0;
  const bool is_held = object.sessions > 0;
  if (object.in_host) {
    sums_.host_bytes += bytes;
    if (is_held || (is_pinned && !object.on_disk)) sums_.host_kept_bytes += bytes;
    if (is_held || !object.on_disk) sums_.host_fixed_bytes += bytes;
  }
  if (object.on_disk) {
    const uint64_t cost = times * object.disk_cost_bytes();
    sums_.disk_bytes += cost;
    sums_.disk_objects += times;
    if (is_held || is_pinned) sums_.disk_kept_bytes += cost;
  }
  if (is_pinned) sums_.pinned_bytes += bytes;
  if (object.account == nullptr) return;
  TenantAccount& account = *object.account;
  if (is_pinned) account.usage.pinned_bytes += bytes;
  if (object.restore_points > 0) {
    account.usage.bytes += bytes;
    account.usage.objects += times;
    if (!is_held && !is_pinned) return;
    account.kept.bytes += bytes;
    account.kept.objects += times;
  } else if (object.promised > 0) {
    account.promised.bytes += bytes;
    account.promised.objects += times;
  }
}

void Catalog::Count(const RestorePointEntry& point, uint64_t times) {
  if (!point.durable) return;
  const uint64_t cost = times * point.manifest_cost_bytes;
  sums_.disk_bytes += cost;
  if (point.pinned || point.sessions > 0) sums_.disk_kept_bytes += cost;
}

void Catalog::CheckInvariants() const {
  absl::flat_hash_map<const StoredObject*, uint32_t> named, pinning;
  for (const auto& [id, point] : points_) {
    assert(point->node->restore_point == point.get() && point->node->key == id);
    for (const StoredObject* object : point->objects) {
      assert(!object->retired && object->node != nullptr);
      ++named[object];
      if (point->pinned) ++pinning[object];
    }
  }
  for (const auto& [number, object] : objects_) {
    assert(number == object->number && (object->restore_points > 0 || object->sessions > 0));
    assert(object->restore_points == 0 || (object->in_host || object->on_disk));
    assert(object->host_restore_points <= object->restore_points);
    const auto names = named.find(object.get());
    assert(object->restore_points == (names == named.end() ? 0 : names->second));
    const auto pins = pinning.find(object.get());
    assert(object->pins == (pins == pinning.end() ? 0 : pins->second));
    assert((object->account != nullptr) == (object->restore_points > 0 || object->promised > 0));
  }
  CheckSums();
  CheckTenants();
  CheckSole();
  CheckExpiry();
}

void Catalog::CheckSums() const {
  Sums counted;
  uint64_t all = 0;
  for (const auto& [number, object] : objects_) {
    const bool stays = object->sessions > 0 || object->pins > 0;
    all += object->bytes();
    if (object->pins > 0) counted.pinned_bytes += object->bytes();
    if (object->in_host) {
      counted.host_bytes += object->bytes();
      const bool is_only_copy = !object->on_disk;
      if (object->sessions > 0 || (stays && is_only_copy)) {
        counted.host_kept_bytes += object->bytes();
      }
      if (object->sessions > 0 || is_only_copy) counted.host_fixed_bytes += object->bytes();
    }
    if (!object->on_disk) continue;
    ++counted.disk_objects;
    counted.disk_bytes += object->disk_cost_bytes();
    if (stays) counted.disk_kept_bytes += object->disk_cost_bytes();
  }
  for (const auto& [id, point] : points_) {
    if (!point->durable) continue;
    counted.disk_bytes += point->manifest_cost_bytes;
    if (point->pinned || point->sessions > 0) {
      counted.disk_kept_bytes += point->manifest_cost_bytes;
    }
  }
  assert(all == object_bytes_);
  assert(counted.host_bytes == sums_.host_bytes);
  assert(counted.host_kept_bytes == sums_.host_kept_bytes);
  assert(counted.host_fixed_bytes == sums_.host_fixed_bytes);
  assert(counted.disk_bytes == sums_.disk_bytes && counted.disk_objects == sums_.disk_objects);
  assert(counted.disk_kept_bytes == sums_.disk_kept_bytes);
  assert(counted.pinned_bytes == sums_.pinned_bytes);
}

void Catalog::CheckTenants() const {
  absl::flat_hash_map<std::string, TenantUsage> usage;
  absl::flat_hash_map<std::string, uint64_t> kept;
  absl::flat_hash_set<const StoredObject*> seen, pinned;
  for (const auto& [id, point] : points_) {
    assert(points_of_.at(point->tenant).contains(point.get()));
    assert(point->account->tenant == point->tenant);
    TenantUsage& tenant = usage[point->tenant];
    ++tenant.restore_points;
    for (const StoredObject* object : point->objects) {
      assert(object->account == point->account);
      if (point->pinned && pinned.insert(object).second) tenant.pinned_bytes += object->bytes();
      if (!seen.insert(object).second) continue;
      ++tenant.objects;
      tenant.bytes += object->bytes();
      if (object->sessions > 0 || object->pins > 0) kept[point->tenant] += object->bytes();
    }
  }
  assert(usage.size() == points_of_.size());
  for (const auto& [tenant, counted] : usage) {
    assert(ledger_.UsageOf(tenant) == counted);
    const TenantAccount& account = *(*points_of_.at(tenant).begin())->account;
    const auto found = kept.find(tenant);
    assert(account.kept.bytes == (found == kept.end() ? 0 : found->second));
    (void)account;
    (void)found;
  }
}

void Catalog::CheckExpiry() const {
  size_t scheduled = 0;
  for (const auto& [id, point] : points_) {
    if (!MayExpire(*point)) continue;
    ++scheduled;
    assert(expiry_.Contains(*point));
  }
  assert(scheduled == expiry_.size());
  for (const RestorePointEntry* point : used_) {
    assert(Find(point->id) == point);
    (void)point;
  }
}

}  // namespace hearth
