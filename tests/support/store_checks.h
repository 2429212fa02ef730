// What must hold of a store's catalog and tiers, counted anew: takes time in proportion to them.
#ifndef HEARTH_TESTS_SUPPORT_STORE_CHECKS_H_
#define HEARTH_TESTS_SUPPORT_STORE_CHECKS_H_

#include <cstdint>
#include <memory>

#include "cache_store/catalog/catalog.h"
#include "cache_store/store/store_seams.h"

namespace hearth {

// Asserts that all sums, counts and references are right.
void CheckCatalog(const Catalog& catalog, const ObjectTable& objects);
// The same of a store's, and that its tiers hold no more than they may.
void CheckInvariants(TieredStore* store);
// A bit of the copy that RAM has of an object: of the restore point with the most hits, the one at
// `place`.
void FlipInRam(TieredStore* store, size_t place = 0);
uint64_t IndexFinds(TieredStore* store);  // PrefixIndex::finds
uint64_t LockYields(TieredStore* store);  // how often a long walk let others have the lock

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
