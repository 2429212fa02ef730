#include "services/inference/worker_metrics.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/engine/engine_counters.h"

namespace hearth {
namespace {

// Adds one sample for each key of `counts`, with the key as `label`. If `counts` is empty, adds one
// sample of 0.
void AddCounts(const std::string& name, const std::string& help, const std::string& label,
               const std::map<std::string, uint64_t>& counts, std::vector<MetricSample>* samples) {
  if (counts.empty()) samples->push_back(MetricSample::Count(name, help, 0, {{label, "none"}}));
  for (const auto& [value, count] : counts) {
    samples->push_back(MetricSample::Count(name, help, count, {{label, value}}));
  }
}

}  // namespace

std::optional<std::string> TierOfCachedTokens(absl::string_view counter) {
  if (!absl::ConsumePrefix(&counter, "cached_tokens_")) return std::nullopt;
  return std::string(counter);
}

std::vector<MetricSample> EngineSamples(const EngineStats& stats) {
  std::vector<MetricSample> samples = {
      MetricSample::Gauge("hearth_worker_running_requests", "Sequences that hold a KV cache.",
                          stats.running),
      MetricSample::Gauge("hearth_worker_queued_requests", "Requests that wait in the queue.",
                          stats.queued),
      MetricSample::Gauge("hearth_worker_pool_bytes",
                          "Bytes of prefixes kept in the worker's pool.", stats.pool_bytes),
      MetricSample::Gauge("hearth_worker_kv_bytes",
                          "Bytes of keys and values of running requests, including blocks that "
                          "requests share. Only for exactness class invariant.",
                          stats.kv_used_bytes),
      MetricSample::Gauge("hearth_worker_staged_bytes",
                          "Bytes of prefixes that wait to be published to the store.",
                          stats.staged_bytes),
  };
  for (const auto& [name, value] : stats.counters) {
    if (const auto tier = TierOfCachedTokens(name)) {
      samples.push_back(MetricSample::Count(
          "hearth_worker_cached_tokens_total",
          "Prompt tokens restored instead of computed, by source.", value, {{"tier", *tier}}));
      continue;
    }
    samples.push_back(MetricSample::Count(absl::StrCat("hearth_worker_", name, "_total"),
                                          EngineCounterMeaning(name), value));
  }
  return samples;
}

std::vector<MetricSample> GrammarSamples(const GrammarEngine::Stats& stats) {
  return {
      MetricSample::Count("hearth_worker_grammars_total",
                          "JSON schemas compiled into grammars of answers.", stats.compiled),
      MetricSample::Count(
          "hearth_worker_grammars_refused_total",
          "JSON schemas refused: invalid, over a limit, or with keywords that cannot be "
          "enforced.",
          stats.refused),
      MetricSample::Gauge("hearth_worker_grammar_bytes",
                          "Bytes of the tables of all grammars; 0 before the first grammar.",
                          stats.bytes),
  };
}

std::vector<MetricSample> CacheSamples(const CacheCounters::Snapshot& counts) {
  std::vector<MetricSample> samples = {
      MetricSample::Count("hearth_worker_store_fetched_bytes_total",
                          "KV bytes fetched from the store.", counts.bytes_fetched),
      MetricSample::Count("hearth_worker_store_shared_bytes_total",
                          "Fetched bytes that were copied from the store's shared memory.",
                          counts.bytes_shared),
      MetricSample::Count("hearth_worker_store_device_bytes_total",
                          "Fetched bytes that the store's gpu tier lent.",
                          counts.bytes_from_device),
      MetricSample::Count("hearth_worker_store_published_bytes_total",
                          "KV bytes published to the store.", counts.bytes_published),
  };
  AddCounts("hearth_worker_store_fetches_total",
            "Fetches from the store, by outcome. After any outcome except hit, the worker computes "
            "the prefix.",
            "outcome", counts.fetches, &samples);
  AddCounts("hearth_worker_store_shared_fallbacks_total",
            "Fetches that could not use shared memory and used the network, by reason.", "reason",
            counts.shared_fallbacks, &samples);
  AddCounts("hearth_worker_store_leases_total",
            "Lease requests (does another worker compute this prefix?), by outcome.", "outcome",
            counts.leases, &samples);
  AddCounts("hearth_worker_store_publishes_total", "Publishes to the store, by outcome.", "outcome",
            counts.publishes, &samples);
  return samples;
}

}  // namespace hearth
