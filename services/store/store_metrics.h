// The store's statistics as metric samples. Thread safety: pure functions.
#ifndef HEARTH_SERVICES_STORE_STORE_METRICS_H_
#define HEARTH_SERVICES_STORE_STORE_METRICS_H_

#include <vector>

#include "cache_store/store/store_admin.h"
#include "services/serving/metrics.h"

namespace hearth {

std::vector<MetricSample> StoreSamples(const StoreStats& stats);
// hearth_store_lookup_seconds and the like.
std::vector<HistogramSample> StoreHistograms(const StoreStats& stats);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_METRICS_H_
