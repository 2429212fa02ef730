// Invariants of a store's catalog and tiers, checked by counting everything again: takes time
// proportional to their size.
#ifndef HEARTH_TESTS_SUPPORT_STORE_CHECKS_H_
#define HEARTH_TESTS_SUPPORT_STORE_CHECKS_H_

#include <cstdint>
#include <memory>

#include "cache_store/catalog/catalog.h"
#include "cache_store/store/store_seams.h"

namespace hearth {

// Asserts that all sums, counts and references of the catalog are right.
void CheckCatalog(const Catalog& catalog, const ObjectTable& objects);
// The same for a store; also asserts that no tier exceeds its capacity.
void CheckInvariants(TieredStore* store);
// Flips a bit of an object's copy in RAM: the object at `place` of the restore point with the most
// hits.
void FlipInRam(TieredStore* store, size_t place = 0);
uint64_t IndexFinds(TieredStore* store);  // PrefixIndex::finds
uint64_t LockYields(TieredStore* store);  // how often a long walk released the lock for others

template <typename Store>
void CheckInvariants(const std::unique_ptr<Store>& store) {
  CheckInvariants(store.get());
}
template <typename Store>
uint64_t IndexFinds(const std::unique_ptr<Store>& store) {
  return IndexFinds(store.get());
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_STORE_CHECKS_H_
