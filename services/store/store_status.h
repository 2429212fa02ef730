// The figures of a store's status page.
//
// They have no tenant's content: the hottest prefixes are ids, sizes and counts. Thread safety: any
// thread. Ownership: the store must outlive the source.
#ifndef HEARTH_SERVICES_STORE_STORE_STATUS_H_
#define HEARTH_SERVICES_STORE_STORE_STATUS_H_

#include <cstddef>

#include "cache_store/store/store_admin.h"
#include "services/serving/status_figures.h"

namespace hearth {

// The number of restore points on the page. The points with the most hits come first.
inline constexpr size_t kHottest = 10;

StatusFigures::Source StoreFigures(StoreAdmin* store);

// Returns the value below which a share `q` of the observations is; 0 if there are none.
double Quantile(const LatencyCounts& counts, double q);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_STATUS_H_
