#include "services/store/store_status.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// The counters that should never grow.
constexpr Counter kErrors[] = {Counter::kQuarantined,
                               Counter::kHostCorrupt,
                               Counter::kTierErrors,
                               Counter::kNondeterminism,
                               Counter::kDigestMismatches,
                               Counter::kWriteBehindFailed,
                               Counter::kEventsLost,
                               Counter::kRecoveryDamage,
                               Counter::kRecoveryLostRestorePoints,
                               Counter::kSharedUnreachableShards};
constexpr Counter kPublishes[] = {Counter::kPublishes,
                                  Counter::kPublishedRestorePoints,
                                  Counter::kPublishedBytes,
                                  Counter::kPublishesRefusedStaged,
                                  Counter::kPublishesRefusedFull,
                                  Counter::kPublishesRefusedQuota,
                                  Counter::kPublishesAbandoned};

Json Pick(const StoreStats& stats, absl::Span<const Counter> counters) {
  Json json = Json::object();
  for (const Counter counter : counters) json[CounterName(counter)] = stats.Of(counter);
  return json;
}

Json TiersJson(const StoreStats& stats) {
  Json tiers = Json::array();
  for (const TierUsage& usage : stats.tiers) {
    tiers.push_back({{"tier", TierName(usage.tier)},
                     {"bytes", usage.bytes},
                     {"capacity_bytes", usage.capacity_bytes},
                     {"objects", usage.objects},
                     {"hit_tokens", usage.hit_tokens},
                     {"read_bytes", usage.read_bytes},
                     {"written_bytes", usage.written_bytes},
                     {"unread_bytes", usage.unread_bytes}});
  }
  return tiers;
}

Json LatenciesJson(const StoreStats& stats) {
  Json latencies = Json::array();
  for (const LatencySeries& series : stats.latencies) {
    const uint64_t count = series.counts.count();
    const double mean_s = count == 0 ? 0 : series.counts.sum_s / static_cast<double>(count);
    latencies.push_back({{"name", series.name},
                         {"of", series.label_value},
                         {"count", count},
                         {"mean_s", mean_s},
                         {"p50_s", Quantile(series.counts, 0.5)},
                         {"p99_s", Quantile(series.counts, 0.99)}});
  }
  return latencies;
}

Json MissesJson(const StoreStats& stats) {
  constexpr absl::string_view kPrefix = "misses_";
  Json misses = Json::object();
  for (const auto& [name, count] : stats.counters) {
    if (absl::StartsWith(name, kPrefix)) misses[name.substr(kPrefix.size())] = count;
  }
  return misses;
}

StatusFigures::Totals TotalsOf(const StoreStats& stats, const FleetTotals& fleet) {
  uint64_t hit_tokens = 0;
  for (const TierUsage& usage : stats.tiers) hit_tokens += usage.hit_tokens;
  return {{"fetches", stats.Of(Counter::kFetches)},
          {"hits", stats.Of(Counter::kHits)},
          {"lookup_tokens", stats.Of(Counter::kLookupTokens)},
          {"hit_tokens", hit_tokens},
          {"held_tokens", stats.Of(Counter::kHeldTokens)},
          {"unasked_tokens", fleet.unasked_tokens},
          {"unasked_held_tokens", fleet.unasked_held_tokens},
          {"saved_us", stats.Of(Counter::kSavedUs) + fleet.saved_us}};
}

void AddFigures(StoreAdmin* store, const FleetTotals& fleet, Json* to) {
  const StoreStats stats = store->Stats();
  Json& json = *to;
  json["incarnation"] = absl::StrCat(absl::Hex(stats.incarnation, absl::kZeroPad16));
  json["restore_points"] = stats.restore_points;
  json["objects"] = stats.objects;
  json["pinned_bytes"] = stats.pinned_bytes;
  json["point_bytes"] = stats.point_bytes;
  json["tiers"] = TiersJson(stats);
  json["lookups"] = Json::object();
  for (const auto& [name, count] : TotalsOf(stats, fleet)) json["lookups"][name] = count;
  json["fleet"] = {{"workers", fleet.workers}, {"models", fleet.models}};
  json["misses"] = MissesJson(stats);
  json["publishes"] = Pick(stats, kPublishes);
  for (size_t i = 0; i < kRemovals; ++i) {
    const char* reason = RemovalName(static_cast<Removal>(i));
    json["removed"][reason] = stats.removed.at(reason);
  }
  json["errors"] = Pick(stats, kErrors);
  json["latencies"] = LatenciesJson(stats);
  json["hottest"] = Json::array();
  for (const RestorePoint& point : store->Hottest(kHottest)) {
    json["hottest"].push_back({{"id", DigestHex(point.id)},
                               {"tokens", point.tokens},
                               {"bytes", point.bytes},
                               {"hits", point.hits},
                               {"age_s", absl::ToDoubleSeconds(point.age)},
                               {"tier", TierName(point.tier)},
                               {"durable", point.durable},
                               {"pinned", point.pinned}});
  }
}

}  // namespace

double Quantile(const LatencyCounts& counts, double q) {
  const double wanted = q * static_cast<double>(counts.count());
  if (wanted == 0) return 0;
  double seen = 0;
  for (size_t i = 0; i < kLatencyBoundsS.size(); ++i) {
    const auto here = static_cast<double>(counts.counts[i]);
    if (seen + here >= wanted) {
      const double low = i == 0 ? 0 : kLatencyBoundsS[i - 1];
      return low + (kLatencyBoundsS[i] - low) * (wanted - seen) / here;
    }
    seen += here;
  }
  return kLatencyBoundsS.back();  // the value is above the last bound
}

StatusFigures::Source StoreFigures(StoreAdmin* store, const FleetTable* fleet) {
  return {[store, fleet] { return TotalsOf(store->Stats(), fleet->Totals()); },
          [store, fleet](Json* json) { AddFigures(store, fleet->Totals(), json); }};
}

}  // namespace hearth
