// Makes metric samples of the engine's statistics and of the cache's outcomes. Pure functions.
#ifndef HEARTH_SERVICES_INFERENCE_WORKER_METRICS_H_
#define HEARTH_SERVICES_INFERENCE_WORKER_METRICS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/inference/cache_counters.h"
#include "services/serving/metrics.h"
#include "worker/engine/engine.h"
#include "worker/text/grammar.h"

namespace hearth {

std::vector<MetricSample> EngineSamples(const EngineStats& stats);
std::vector<MetricSample> GrammarSamples(const GrammarEngine::Stats& stats);
std::vector<MetricSample> CacheSamples(const CacheCounters::Snapshot& counts);

// Returns the tier if `counter` (of EngineStats) counts tokens restored from one; else nullopt.
std::optional<std::string> TierOfCachedTokens(absl::string_view counter);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_WORKER_METRICS_H_
