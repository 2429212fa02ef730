// Makes the figures of a store's status page.
//
// The page has no tenant's content: the most used prefixes are shown as ids, sizes and counts.
// Thread safety: any thread. Ownership: the store must outlive the source.
#ifndef HEARTH_SERVICES_STORE_STORE_STATUS_H_
#define HEARTH_SERVICES_STORE_STORE_STATUS_H_

#include <cstddef>

#include "cache_store/store/store_admin.h"
#include "services/serving/status_figures.h"

namespace hearth {

// Number of restore points on the page: those with the most hits.
inline constexpr size_t kHottest = 10;

StatusFigures::Source StoreFigures(StoreAdmin* store);

// Returns the value that a fraction `q` of the observations does not exceed; 0 without
// observations.
double Quantile(const LatencyCounts& counts, double q);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_STATUS_H_
