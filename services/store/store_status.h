// Makes the figures of a store's status page.
//
// The page has no tenant's content and no names: the most used prefixes are shown as ids, sizes and
// counts. /fleet.json has the names (fleet_page.h). Thread safety: any thread. Ownership: the store
// and the fleet must outlive the source.
#ifndef HEARTH_SERVICES_STORE_STORE_STATUS_H_
#define HEARTH_SERVICES_STORE_STORE_STATUS_H_

#include <cstddef>

#include "cache_store/store/store_admin.h"
#include "services/serving/status_figures.h"
#include "services/store/fleet_table.h"

namespace hearth {

// Number of restore points on the page: those with the most hits.
inline constexpr size_t kHottest = 10;

// `fleet`: the workers that report to the store.
StatusFigures::Source StoreFigures(StoreAdmin* store, const FleetTable* fleet);

// Returns the value that a fraction `q` of the observations does not exceed; 0 without
// observations.
double Quantile(const LatencyCounts& counts, double q);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_STATUS_H_
