// Checks the sums and references of a store's catalog and tiers by counting everything again, which
// takes time proportional to their size.
#ifndef HEARTH_TESTS_SUPPORT_STORE_CHECKS_H_
#define HEARTH_TESTS_SUPPORT_STORE_CHECKS_H_

#include <cstdint>
#include <memory>

#include "cache_store/catalog/catalog.h"
#include "cache_store/store/store_seams.h"

namespace hearth {

// Asserts that all sums, counts and references of the catalog are right.
void CheckCatalog(const Catalog& catalog, const ObjectTable& objects);
// Asserts what CheckCatalog asserts for the store's catalog, and that no tier exceeds its capacity.
void CheckInvariants(TieredStore* store);
// Flips a bit in RAM, in the copy of an object. `place` is the number of the object in the restore
// point with the most hits.
void FlipInRam(TieredStore* store, size_t place = 0);
uint64_t IndexFinds(TieredStore* store);  // returns PrefixIndex::finds
// returns how often a long walk released the lock, so that other threads could take it
uint64_t LockYields(TieredStore* store);

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
