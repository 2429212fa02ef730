// The figures of a store's status page.
//
// No tenant's content: the hottest prefixes are ids, sizes and counts. Thread safety: any thread.
// Ownership: the store must outlive the source.
#ifndef HEARTH_SERVICES_STORE_STORE_STATUS_H_
#define HEARTH_SERVICES_STORE_STORE_STATUS_H_

#include <cstddef>

#include "cache_store/store/store_admin.h"
#include "services/serving/status_figures.h"

namespace hearth {

// Restore points that the page lists, those with the most hits first.
inline constexpr size_t kHottest = 10;

StatusFigures::Source StoreFigures(StoreAdmin* store);

// The value below which a share `q` of the observations lies, from the buckets; 0 without any.
double Quantile(const LatencyCounts& counts, double q);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_STATUS_H_
