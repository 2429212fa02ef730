#include "services/store/store_status.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// Counters that should never grow.
constexpr Counter kErrors[] = {
    Counter::kQuarantined,    Counter::kHostCorrupt,      Counter::kTierErrors,
    Counter::kNondeterminism, Counter::kDigestMismatches, Counter::kWriteBehindFailed,
    Counter::kEventsLost,     Counter::kRecoveryDamage,   Counter::kRecoveryLostRestorePoints};
constexpr Counter kPublishes[] = {Counter::kPublishes,
                                  Counter::kPublishedRestorePoints,
                                  Counter::kPublishedBytes,
                                  Counter::kPublishesRefusedStaged,
                                  Counter::kPublishesRefusedFull,
                                  Counter::kPublishesRefusedQuota,
                                  Counter::kPublishesRefusedLoading,
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

template <typename Growth>
Json StepJson(const Growth& step) {
  return {{"fetches", step.fetches},
          {"hits", step.hits},
          {"lookup_tokens", step.lookup_tokens},
          {"hit_tokens", step.hit_tokens},
          {"published_bytes", step.published_bytes}};
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
  return kLatencyBoundsS.back();  // beyond the last bound
}

StoreStatus::StoreStatus(TieredStore* store, std::string version, Clock* clock)
    : store_(store),
      version_(std::move(version)),
      clock_(clock != nullptr ? clock : &system_clock_),
      start_(clock_->Now()),
      last_(Totals(store->Stats())) {}

StoreStatus::~StoreStatus() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (sampler_.joinable()) sampler_.join();
}

void StoreStatus::Start() {
  sampler_ = std::thread([this] {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kStep)) return;
      }
      Sample();
    }
  });
}

StoreStatus::Growth StoreStatus::Totals(const StoreStats& stats) {
  Growth totals;
  totals.fetches = stats.Of(Counter::kFetches);
  totals.hits = stats.Of(Counter::kHits);
  totals.lookup_tokens = stats.Of(Counter::kLookupTokens);
  totals.published_bytes = stats.Of(Counter::kPublishedBytes);
  for (const TierUsage& usage : stats.tiers) totals.hit_tokens += usage.hit_tokens;
  return totals;
}

StoreStatus::Growth StoreStatus::Since(const Growth& last, const Growth& now) {
  return {now.fetches - last.fetches, now.hits - last.hits, now.lookup_tokens - last.lookup_tokens,
          now.hit_tokens - last.hit_tokens, now.published_bytes - last.published_bytes};
}

void StoreStatus::Sample() {
  const Growth now = Totals(store_->Stats());
  absl::MutexLock lock(&mutex_);
  steps_.push_back(Since(last_, now));
  if (steps_.size() > kSteps) steps_.pop_front();
  last_ = now;
}

std::string StoreStatus::JsonText() {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  if (made_.empty() || now - made_at_ >= absl::Seconds(1)) {
    made_ = Make();
    made_at_ = now;
  }
  return made_;
}

std::string StoreStatus::Make() {
  mutex_.AssertHeld();
  const StoreStats stats = store_->Stats();
  const Growth totals = Totals(stats);
  Json json;
  json["program"] = "hearth-store";
  json["version"] = version_;
  json["uptime_s"] = absl::ToDoubleSeconds(clock_->Now() - start_);
  json["incarnation"] = absl::StrCat(absl::Hex(stats.incarnation, absl::kZeroPad16));
  json["restore_points"] = stats.restore_points;
  json["unloaded_restore_points"] = stats.Of(Counter::kUnloadedRestorePoints);
  json["objects"] = stats.objects;
  json["pinned_bytes"] = stats.pinned_bytes;
  json["tiers"] = TiersJson(stats);
  json["lookups"] = {{"fetches", totals.fetches},
                     {"hits", totals.hits},
                     {"lookup_tokens", totals.lookup_tokens},
                     {"hit_tokens", totals.hit_tokens}};
  json["misses"] = MissesJson(stats);
  json["step_s"] = absl::ToDoubleSeconds(kStep);
  json["steps"] = Json::array();
  for (const Growth& step : steps_) json["steps"].push_back(StepJson(step));
  json["step_now"] = StepJson(Since(last_, totals));
  json["publishes"] = Pick(stats, kPublishes);
  for (size_t i = 0; i < kRemovals; ++i) {
    const char* reason = RemovalName(static_cast<Removal>(i));
    json["removed"][reason] = stats.removed.at(reason);
  }
  json["errors"] = Pick(stats, kErrors);
  json["latencies"] = LatenciesJson(stats);
  json["hottest"] = Json::array();
  for (const RestorePoint& point : store_->Hottest(kHottest)) {
    json["hottest"].push_back({{"id", DigestHex(point.id)},
                               {"tokens", point.tokens},
                               {"bytes", point.bytes},
                               {"hits", point.hits},
                               {"age_s", absl::ToDoubleSeconds(point.age)},
                               {"tier", TierName(point.tier)},
                               {"durable", point.durable},
                               {"pinned", point.pinned}});
  }
  return JsonLine(json);
}

}  // namespace hearth
