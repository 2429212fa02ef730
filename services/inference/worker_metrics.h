// The engine's statistics and the cache's outcomes as metric samples. Pure, thread safe.
#ifndef HEARTH_SERVICES_INFERENCE_WORKER_METRICS_H_
#define HEARTH_SERVICES_INFERENCE_WORKER_METRICS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/inference/cache_counters.h"
#include "services/serving/metrics.h"
#include "worker/engine/engine.h"

namespace hearth {

std::vector<MetricSample> EngineSamples(const EngineStats& stats);
std::vector<MetricSample> CacheSamples(const CacheCounters::Snapshot& counts);

// Returns the tier whose tokens a counter in EngineStats counts; none: it counts other things.
std::optional<std::string> TierOfCachedTokens(absl::string_view counter);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_WORKER_METRICS_H_
