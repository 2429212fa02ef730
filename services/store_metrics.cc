#include "services/store_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace hearth {
namespace {

MetricSample OfTier(const TierUsage& usage, const char* name, const char* help, bool is_counter,
                    uint64_t value) {
  return {name, help, is_counter, {{"tier", TierName(usage.tier)}}, static_cast<double>(value)};
}

}  // namespace

std::vector<MetricSample> StoreSamples(const StoreStats& stats) {
  std::vector<MetricSample> samples = {
      {"hearth_store_restore_points",
       "Restore points stored.",
       false,
       {},
       static_cast<double>(stats.restore_points)},
      {"hearth_store_objects", "Objects stored.", false, {}, static_cast<double>(stats.objects)},
      {"hearth_store_pinned_bytes",
       "Bytes that pins hold.",
       false,
       {},
       static_cast<double>(stats.pinned_bytes)},
  };
  for (const TierUsage& usage : stats.tiers) {
    samples.push_back(
        OfTier(usage, "hearth_store_tier_bytes", "Bytes held by a tier.", false, usage.bytes));
    samples.push_back(OfTier(usage, "hearth_store_tier_capacity_bytes",
                             "Most bytes that a tier may hold.", false, usage.capacity_bytes));
    samples.push_back(OfTier(usage, "hearth_store_tier_objects", "Objects held by a tier.", false,
                             usage.objects));
    samples.push_back(OfTier(usage, "hearth_store_evicted_restore_points_total",
                             "Restore points that a tier evicted.", true,
                             usage.evicted_restore_points));
    samples.push_back(OfTier(usage, "hearth_store_hit_tokens_total",
                             "Tokens restored whose slowest tier this was.", true,
                             usage.hit_tokens));
  }
  for (const auto& [name, value] : stats.counters) {
    // Exported above, by tier: a second series under its name would be summed with those.
    if (name == "evicted_restore_points") continue;
    samples.push_back(
        {absl::StrCat("hearth_store_", absl::StrReplaceAll(name, {{".", "_"}}), "_total"),
         absl::StrCat("The store's counter ", name, "."),
         true,
         {},
         static_cast<double>(value)});
  }
  return samples;
}

}  // namespace hearth
