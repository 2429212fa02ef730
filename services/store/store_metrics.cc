#include "services/store/store_metrics.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace hearth {
namespace {

// Returns the name of the metric if `name` is a gauge; null if it is a counter.
const char* GaugeName(absl::string_view name) {
  return name == CounterName(Counter::kLastFullScrubUnixS)
             ? "hearth_store_last_full_scrub_timestamp_seconds"
             : nullptr;
}

// Whether a counter is exported elsewhere: by tier, or by SharedEngineSamples. If it were exported
// here too, Prometheus would count it twice in sums.
bool IsShownElsewhere(absl::string_view name) {
  for (const Counter counter : {Counter::kEvicted, Counter::kBytesReadHost, Counter::kBytesReadDisk,
                                Counter::kBytesReadGpu, Counter::kSharedReadBytes,
                                Counter::kSharedWrittenBytes, Counter::kSharedUnreachableShards}) {
    if (name == CounterName(counter)) return true;
  }
  return false;
}

}  // namespace

std::vector<MetricSample> StoreSamples(const StoreStats& stats) {
  std::vector<MetricSample> samples;
  const auto gauge = [&samples](const char* name, const char* help, uint64_t value,
                                const MetricLabels& labels = {}) {
    samples.push_back(MetricSample::Gauge(name, help, value, labels));
  };
  const auto count = [&samples](const std::string& name, const std::string& help, uint64_t value,
                                const MetricLabels& labels = {}) {
    samples.push_back(MetricSample::Count(name, help, value, labels));
  };
  gauge("hearth_store_restore_points", "Restore points stored.", stats.restore_points);
  gauge("hearth_store_objects", "Objects stored.", stats.objects);
  gauge("hearth_store_pinned_bytes", "Bytes of pinned restore points.", stats.pinned_bytes);
  gauge("hearth_store_point_bytes",
        "Bytes of RAM for the bookkeeping of restore points; part of --host-bytes.",
        stats.point_bytes);
  gauge("hearth_store_host_resident_bytes", "Resident bytes of the host tier, used or free.",
        stats.resident_bytes);
  gauge("hearth_store_staged_bytes", "Bytes of memory for publishes being received.",
        stats.staged_bytes);
  for (const TierUsage& usage : stats.tiers) {
    const MetricLabels tier = {{"tier", TierName(usage.tier)}};
    // The fill of the shared tier is reported by SharedEngineSamples.
    if (usage.tier != Tier::kShared) {
      gauge("hearth_store_tier_bytes", "Bytes held by a tier.", usage.bytes, tier);
      gauge("hearth_store_tier_capacity_bytes", "Maximum bytes of a tier.", usage.capacity_bytes,
            tier);
      gauge("hearth_store_tier_objects", "Objects held by a tier.", usage.objects, tier);
      count("hearth_store_evicted_restore_points_total",
            "Restore points that a tier evicted. If there is a disk tier, RAM counts evicted "
            "copies of objects instead.",
            usage.evicted_restore_points, tier);
    }
    count("hearth_store_hit_tokens_total",
          "Restored tokens, by the slowest tier that they were read from.", usage.hit_tokens, tier);
    count("hearth_store_read_bytes_total", "KV bytes read from a tier.", usage.read_bytes, tier);
    count("hearth_store_written_bytes_total", "KV bytes written to a tier.", usage.written_bytes,
          tier);
    count("hearth_store_unread_bytes_total",
          "KV bytes that left a tier without being read from it.", usage.unread_bytes, tier);
  }
  for (const auto& [reason, left] : stats.removed) {
    count("hearth_store_removed_restore_points_total",
          "Restore points that left the store, by reason.", left, {{"reason", reason}});
  }
  for (const auto& [name, value] : stats.counters) {
    if (IsShownElsewhere(name)) continue;
    if (const char* const as_gauge = GaugeName(name)) {
      gauge(as_gauge, CounterMeaning(name).c_str(), value);
    } else {
      count(absl::StrCat("hearth_store_", absl::StrReplaceAll(name, {{".", "_"}}), "_total"),
            CounterMeaning(name), value);
    }
  }
  return samples;
}

std::vector<HistogramSample> StoreHistograms(const StoreStats& stats) {
  std::vector<HistogramSample> samples;
  for (const LatencySeries& series : stats.latencies) {
    HistogramSample sample;
    sample.name = absl::StrCat("hearth_store_", series.name, "_seconds");
    sample.help = series.help;
    if (!series.label.empty()) sample.labels[series.label] = series.label_value;
    sample.bounds.assign(kLatencyBoundsS.begin(), kLatencyBoundsS.end());
    sample.counts.assign(series.counts.counts.begin(), series.counts.counts.end());
    sample.sum = series.counts.sum_s;
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<MetricSample> FleetSamples(const FleetTotals& fleet) {
  return {
      MetricSample::Gauge("hearth_store_workers", "Workers that reported in the last 16 seconds.",
                          fleet.workers),
      MetricSample::Count("hearth_store_unasked_tokens_total",
                          "Prompt tokens of requests that made no lookup, as workers report.",
                          fleet.unasked_tokens),
      MetricSample::Count("hearth_store_unasked_held_tokens_total",
                          "Prompt tokens that workers restored from their own memory and that no "
                          "lookup counted, as workers report.",
                          fleet.unasked_held_tokens),
      MetricSample::Count("hearth_store_unasked_saved_us_total",
                          "Microseconds of computing saved by these tokens, estimated from the "
                          "workers' speed.",
                          fleet.saved_us),
  };
}

}  // namespace hearth
