#include "services/inference/worker_metrics.h"

#include "absl/strings/str_cat.h"

namespace hearth {

std::vector<MetricSample> EngineSamples(const EngineStats& stats) {
  std::vector<MetricSample> samples = {
      {"hearth_worker_running_requests",
       "Sequences that hold a KV cache.",
       false,
       {},
       static_cast<double>(stats.running)},
      {"hearth_worker_queued_requests",
       "Requests waiting for a place.",
       false,
       {},
       static_cast<double>(stats.queued)},
      {"hearth_worker_pool_bytes",
       "Bytes of restored prefixes kept in the worker.",
       false,
       {},
       static_cast<double>(stats.pool_bytes)},
      {"hearth_worker_kv_bytes",
       "Keys and values of running requests and what shares them, class invariant.",
       false,
       {},
       static_cast<double>(stats.kv_used_bytes)},
      {"hearth_worker_staged_bytes",
       "Bytes of tails waiting to be published.",
       false,
       {},
       static_cast<double>(stats.staged_bytes)},
  };
  for (const auto& [name, value] : stats.counters) {
    samples.push_back({absl::StrCat("hearth_worker_", name, "_total"),
                       absl::StrCat("The engine's counter ", name, "."),
                       true,
                       {},
                       static_cast<double>(value)});
  }
  return samples;
}

std::vector<MetricSample> CacheSamples(const CacheCounters::Snapshot& counts) {
  std::vector<MetricSample> samples = {
      {"hearth_worker_store_fetched_bytes_total",
       "KV bytes taken from the store.",
       true,
       {},
       static_cast<double>(counts.bytes_fetched)},
      {"hearth_worker_store_shared_bytes_total",
       "Of the fetched bytes, those copied out of the store's shared memory.",
       true,
       {},
       static_cast<double>(counts.bytes_shared)},
      {"hearth_worker_store_device_bytes_total",
       "Of the fetched bytes, those copied out of the store's gpu tier.",
       true,
       {},
       static_cast<double>(counts.bytes_from_device)},
      {"hearth_worker_store_published_bytes_total",
       "KV bytes given to the store.",
       true,
       {},
       static_cast<double>(counts.bytes_published)},
  };
  for (const auto& [outcome, count] : counts.fetches) {
    samples.push_back({"hearth_worker_store_fetches_total",
                       "Fetches from the store, by outcome; all but hit are computed instead.",
                       true,
                       {{"outcome", outcome}},
                       static_cast<double>(count)});
  }
  for (const auto& [reason, count] : counts.shared_fallbacks) {
    samples.push_back({"hearth_worker_store_shared_fallbacks_total",
                       "Fetches that could not use the shared memory and went over the wire.",
                       true,
                       {{"reason", reason}},
                       static_cast<double>(count)});
  }
  for (const auto& [outcome, count] : counts.leases) {
    samples.push_back({"hearth_worker_store_leases_total",
                       "Times this worker asked whether another computes a prefix, by outcome.",
                       true,
                       {{"outcome", outcome}},
                       static_cast<double>(count)});
  }
  for (const auto& [outcome, count] : counts.publishes) {
    samples.push_back({"hearth_worker_store_publishes_total",
                       "Publishes to the store, by outcome.",
                       true,
                       {{"outcome", outcome}},
                       static_cast<double>(count)});
  }
  return samples;
}

}  // namespace hearth
