// Makes metric samples of the store's statistics. Thread safety: pure functions.
#ifndef HEARTH_SERVICES_STORE_STORE_METRICS_H_
#define HEARTH_SERVICES_STORE_STORE_METRICS_H_

#include <vector>

#include "cache_store/store/store_admin.h"
#include "services/serving/metrics.h"
#include "services/store/fleet_table.h"

namespace hearth {

std::vector<MetricSample> StoreSamples(const StoreStats& stats);
std::vector<MetricSample> FleetSamples(const FleetTotals& fleet);
// Returns the histograms, such as hearth_store_lookup_seconds.
std::vector<HistogramSample> StoreHistograms(const StoreStats& stats);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_METRICS_H_
