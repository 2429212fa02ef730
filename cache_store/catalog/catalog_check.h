// CheckCatalog: that the sums, counts and references which are kept along the way equal those
// counted anew.
#ifndef HEARTH_CACHE_STORE_CATALOG_CATALOG_CHECK_H_
#define HEARTH_CACHE_STORE_CATALOG_CATALOG_CHECK_H_

#include "cache_store/catalog/catalog.h"

namespace hearth {

// Asserts it. For tests: as slow as the catalog is large.
void CheckCatalog(const Catalog& catalog, const ObjectTable& objects);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_CATALOG_CHECK_H_
