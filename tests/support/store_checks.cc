#include "tests/support/store_checks.h"

#include <cassert>

#include "cache_store/store/calls/store.h"

namespace hearth {
namespace {

void CheckNames(const Catalog& catalog, const ObjectTable& objects) {
  absl::flat_hash_map<StoredObject*, uint32_t> named, pinning;
  catalog.ForEach([&](RestorePointEntry* point) {
    assert(point->node->restore_point == point && catalog.Find(point->id()) == point);
    for (StoredObject* object : point->objects) {
      assert(!object->retired && object->node != nullptr);
      ++named[object];
      if (point->pinned) ++pinning[object];
    }
  });
  for (const auto& object : objects.all()) {
    const uint32_t names = object->names;
    assert(objects.Find(object->number) == object.get() && (names > 0 || object->sessions > 0));
    assert(names == 0 || object->in_host() || object->on_disk);
    assert(names == named[object.get()]);
    assert(object->pins == pinning[object.get()]);
    assert((object->account != nullptr) == (names > 0 || object->promised > 0));
  }
}

void CheckSums(const Catalog& catalog, const ObjectTable& objects) {
  StorageSums counted;
  uint64_t bytes = 0;
  for (const auto& object : objects.all()) {
    counted.CountInTiers(*object, 1);
    bytes += object->bytes();
  }
  catalog.ForEach([&](RestorePointEntry* point) { counted.Count(*point, 1); });
  assert(bytes == objects.bytes());
  assert(counted.SameInTiers(objects.sums()));
}

void CheckTenants(const Catalog& catalog) {
  absl::flat_hash_map<std::string, TenantUsage> usage;
  absl::flat_hash_map<std::string, uint64_t> kept;
  absl::flat_hash_set<StoredObject*> seen, pinned;
  const auto& points_of = catalog.points_of_tenants();
  catalog.ForEach([&](RestorePointEntry* point) {
    assert(points_of.at(point->tenant()).contains(point));
    TenantUsage& tenant = usage[point->tenant()];
    ++tenant.restore_points;
    for (StoredObject* object : point->objects) {
      assert(object->account == point->account);
      if (point->pinned && pinned.insert(object).second) tenant.pinned_bytes += object->bytes();
      if (!seen.insert(object).second) continue;
      ++tenant.objects;
      tenant.bytes += object->bytes();
      if (object->sessions > 0 || object->pins > 0) kept[point->tenant()] += object->bytes();
    }
  });
  assert(usage.size() == points_of.size());
  for (const auto& [tenant, counted] : usage) {
    assert(catalog.accounts().UsageOf(tenant) == counted);
    assert((*points_of.at(tenant).begin())->account->kept.bytes == kept[tenant]);
  }
}

void CheckExpiry(const Catalog& catalog) {
  size_t scheduled = 0;
  catalog.ForEach([&](RestorePointEntry* point) {
    if (!MayExpire(*point)) return;
    ++scheduled;
    assert(catalog.expiry().Contains(*point));
  });
  assert(scheduled == catalog.expiry().size());
}

void CheckUses(const Catalog& catalog) {
  const RetentionFeed& feed = catalog.feed();
  assert(feed.held() == feed.size());
  assert(feed.size() == catalog.size());
  catalog.ForEach([&](RestorePointEntry* point) { assert(feed.Contains(*point)); });
  for (RestorePointEntry* point : catalog.used()) {
    assert(catalog.Find(point->id()) == point);
  }
}

}  // namespace

void CheckCatalog(const Catalog& catalog, const ObjectTable& objects) {
  CheckNames(catalog, objects);
  CheckSums(catalog, objects);
  CheckTenants(catalog);
  CheckUses(catalog);
  CheckExpiry(catalog);
}

void CheckInvariants(TieredStore* store) {
  StoreCore* const core = static_cast<Store*>(store)->core();
  StoreLock lock(core);
  assert(core->objects.sums().host_bytes() <= core->evictor.HostLimitBytes());
  const uint64_t most_point_bytes = core->evictor.limits().point_bytes;
  assert(most_point_bytes == 0 || core->evictor.PointBytes() <= most_point_bytes);
  assert(core->objects.sums().evictable_point_bytes() <= core->catalog.cost_bytes());
  assert(core->objects.sums().disk_bytes() <= core->evictor.limits().disk_bytes);
  CheckCatalog(core->catalog, core->objects);
  if (core->tiers.device == nullptr) return;
  const DeviceTier::Usage usage = core->tiers.device->usage();
  assert(usage.bytes <= core->options.device->size_bytes());
  for (const uint64_t number : usage.objects) {
    StoredObject* object = core->objects.Find(number);
    assert(object != nullptr && !object->retired);
  }
}

void FlipInRam(TieredStore* store, size_t place) {
  const Digest id = store->Hottest(1).at(0).id;
  StoreCore* const core = static_cast<Store*>(store)->core();
  StoreLock lock(core);
  const SliceView& slice = core->catalog.Find(id)->objects.at(place)->host->at(0);
  const_cast<std::byte&>(slice.bytes[slice.bytes.size() / 2]) ^= std::byte{0x10};
}

uint64_t IndexFinds(TieredStore* store) {
  StoreCore* const core = static_cast<Store*>(store)->core();
  StoreLock lock(core);
  return core->catalog.index().finds();
}

uint64_t LockYields(TieredStore* store) {
  StoreCore* const core = static_cast<Store*>(store)->core();
  StoreLock lock(core);
  return core->yields;
}

}  // namespace hearth
