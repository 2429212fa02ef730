// CatalogKit: a catalog with artificial restore points in RAM; each has one object and one
// boundary, and belongs to its own tenant.
#ifndef HEARTH_TESTS_CACHE_STORE_CATALOG_CATALOG_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_CATALOG_CATALOG_KIT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/catalog/catalog.h"
#include "cache_store/catalog/evictor.h"
#include "tests/support/store_checks.h"

namespace hearth {

struct CatalogKit {
  static constexpr uint64_t kBytes = 1000;  // bytes of each object

  explicit CatalogKit(const Evictor::Limits& limits, TenantQuotas quotas = {})
      : objects(std::move(quotas)),
        catalog(
            &objects, RetentionPolicy::kLru,
            [this](const RestorePointEntry& point, Removal) { removed.push_back(point.tenant()); }),
        evictor(limits, &objects, &catalog) {}
  ~CatalogKit() { CheckCatalog(catalog, objects); }

  // Returns a new object that is in no tier, invisible, and held by the caller.
  StoredObject* NewObject(const std::string& name) {
    return objects.NewObject(objects.NextNumber(), Sha256(name), ObjectId{}, {1}, {0}, kBytes);
  }
  void SetInHost(StoredObject* object) {
    objects.SetInHost(object,
                      std::make_shared<const std::vector<SliceView>>(object->layers().size()));
  }
  SegmentNode* NodeOf(const std::string& name) {
    KeyedSegment segment;
    segment.segment.tokens = 1;
    segment.key = Sha256(name);
    return objects.index().Ensure(objects.index().EnsureRoot(Sha256("root")), segment,
                                  {static_cast<uint32_t>(name[0])});
  }
  // Adds a restore point in RAM, for the tenant `name`. Returns null if RAM has no space.
  RestorePointEntry* Add(const std::string& name) {
    if (!evictor.ReserveHost(kBytes, name)) return nullptr;
    evictor.UnreserveHost(kBytes);
    StoredObject* object = NewObject(name);
    SetInHost(object);
    objects.Link(object, NodeOf(name));
    now += absl::Seconds(1);
    RestorePointEntry* point =
        catalog.AddRestorePoint(objects.NextNumber(), name, model, object->node, {object}, {}, now);
    catalog.Renew(point, absl::InfiniteFuture());
    objects.Release(object);
    return point;
  }

  ObjectTable objects;
  Catalog catalog;
  Evictor evictor;
  std::vector<std::string> removed;  // tenants of the removed restore points
  absl::Time now = absl::FromUnixSeconds(1700000000);
  std::shared_ptr<const KnownFingerprint> model = std::make_shared<KnownFingerprint>();
};

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_CATALOG_CATALOG_KIT_H_
