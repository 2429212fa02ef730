#include "services/inference/worker_status.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "services/inference/worker_metrics.h"
#include "worker/engine/engine_counters.h"

namespace hearth {
namespace {

using Counts = std::map<std::string, uint64_t>;

// The engine's counters whose growth the page shows.
constexpr EngineCounter kTotals[] = {EngineCounter::kRequests, EngineCounter::kPromptTokens,
                                     EngineCounter::kGeneratedTokens};
constexpr EngineCounter kRequests[] = {
    EngineCounter::kRequests,          EngineCounter::kRequestsFinished,
    EngineCounter::kRequestsCancelled, EngineCounter::kRequestsExpired,
    EngineCounter::kRequestsRefused,   EngineCounter::kRequestsFailed};
constexpr EngineCounter kErrors[] = {EngineCounter::kRequestsFailed, EngineCounter::kNondeterminism,
                                     EngineCounter::kAuditsWrong, EngineCounter::kFetchesRefused};

uint64_t Of(const Counts& counts, const std::string& name) {
  const auto it = counts.find(name);
  return it == counts.end() ? 0 : it->second;
}

// Returns the number of prompt tokens that were restored, from all tiers together.
uint64_t CachedTokens(const Counts& counters) {
  uint64_t tokens = 0;
  for (const auto& [name, count] : counters) {
    if (TierOfCachedTokens(name).has_value()) tokens += count;
  }
  return tokens;
}

StatusFigures::Totals TotalsOf(const Counts& counters) {
  StatusFigures::Totals totals = {{"cached_tokens", CachedTokens(counters)}};
  for (const EngineCounter counter : kTotals) {
    const char* const name = EngineCounterName(counter);
    totals.emplace_back(name, Of(counters, name));
  }
  return totals;
}

Json Pick(const Counts& counters, absl::Span<const EngineCounter> picked) {
  Json json = Json::object();
  for (const EngineCounter counter : picked) {
    const char* const name = EngineCounterName(counter);
    json[name] = Of(counters, name);
  }
  return json;
}

// `grammar_bytes`: size of the grammar tables; they have no limit, so it is their capacity, too.
Json MemoryJson(const EngineStats& stats, uint64_t grammar_bytes) {
  Json memory = Json::array();
  const auto add = [&](const char* name, uint64_t bytes, uint64_t capacity) {
    if (capacity == 0) return;
    memory.push_back({{"tier", name}, {"bytes", bytes}, {"capacity_bytes", capacity}});
  };
  add("kv", stats.kv_used_bytes, stats.kv_budget_bytes);
  add("worker", stats.pool_bytes, stats.pool_limit_bytes);
  add("staged", stats.staged_bytes, stats.staging_limit_bytes);
  add("grammars", grammar_bytes, grammar_bytes);
  return memory;
}

// Returns the numbers of prompt tokens by source: each tier, or computed.
Json SourcesJson(const Counts& counters) {
  Json sources = {{"computed", Of(counters, EngineCounterName(EngineCounter::kComputedTokens))}};
  for (const auto& [name, count] : counters) {
    if (const auto tier = TierOfCachedTokens(name)) sources[*tier] = count;
  }
  return sources;
}

// Returns the counters that should never grow.
Json ErrorsJson(const Counts& counters, const CacheCounters* cache) {
  Json errors = Pick(counters, kErrors);
  if (cache == nullptr) return errors;
  const Counts fetches = cache->Read().fetches;
  errors["fetches_corrupt"] = Of(fetches, "corrupt");
  errors["fetches_mismatch"] = Of(fetches, "mismatch");
  errors["fetches_not_allowed"] = Of(fetches, "refused");
  errors["fetches_error"] = Of(fetches, "error");
  return errors;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

}  // namespace

void FillReport(const Engine& engine, v1::ReportRequest* report) {
  const EngineStats stats = engine.Stats();
  const auto of = [&](EngineCounter counter) {
    return Of(stats.counters, EngineCounterName(counter));
  };
  report->set_running(stats.running);
  report->set_places(stats.places);
  report->set_queued(stats.queued);
  report->set_prompt_tokens(of(EngineCounter::kPromptTokens));
  report->set_cached_tokens(CachedTokens(stats.counters));
  report->set_unasked_tokens(of(EngineCounter::kUnaskedTokens));
  report->set_unasked_held_tokens(of(EngineCounter::kUnaskedHeldTokens));
  const auto token = engine.EstimateLoad(1).compute_estimate;
  report->set_token_ns(
      static_cast<uint64_t>(absl::ToInt64Nanoseconds(token.value_or(absl::ZeroDuration()))));
}

WorkerStatus::WorkerStatus(const Engine* engine, const CacheCounters* cache, std::string version,
                           Clock* clock, const Reachability* store)
    : engine_(engine),
      cache_(cache),
      store_(store),
      figures_("hearth-worker", std::move(version),
               {[this] { return TotalsOf(engine_->Stats().counters); },
                [this](Json* json) { Add(json); }},
               clock) {}

void WorkerStatus::RecordTimes(const FinishedInfo& info) {
  absl::MutexLock lock(&mutex_);
  ++finished_;
  for (size_t i = 0; i < kSeries.size(); ++i) {
    recent_[i].push_back(info.*kSeries[i].ms);
    if (recent_[i].size() > kRecentRequests) recent_[i].pop_front();
  }
}

void WorkerStatus::ShowGrammars(std::function<GrammarEngine::Stats()> stats) {
  absl::MutexLock lock(&mutex_);
  grammars_ = std::move(stats);
}

uint64_t WorkerStatus::GrammarBytes() const {
  absl::MutexLock lock(&mutex_);
  return grammars_ == nullptr ? 0 : grammars_().bytes;
}

Json WorkerStatus::LatenciesJson() const {
  absl::MutexLock lock(&mutex_);
  Json latencies = Json::array();
  for (size_t i = 0; i < kSeries.size(); ++i) {
    const std::vector<double> values(recent_[i].begin(), recent_[i].end());
    latencies.push_back({{"name", kSeries[i].name},
                         {"of", ""},
                         {"count", finished_},
                         {"p50_s", Quantile(values, 0.5) / 1e3},
                         {"p99_s", Quantile(values, 0.99) / 1e3}});
  }
  return latencies;
}

void WorkerStatus::Add(Json* to) const {
  const EngineStats stats = engine_->Stats();
  const Counts& counters = stats.counters;
  Json& json = *to;
  json["model"] = {{"device", engine_->device()},
                   {"dtype", engine_->dtype()},
                   {"exactness", ExactnessName(engine_->layout().exactness)},
                   {"fingerprint", DigestHex(engine_->fingerprint().digest())}};
  json["running"] = stats.running;
  json["places"] = stats.places;
  json["queued"] = stats.queued;
  json["totals"] = Json::object();
  for (const auto& [name, count] : TotalsOf(counters)) json["totals"][name] = count;
  json["sources"] = SourcesJson(counters);
  json["tiers"] = MemoryJson(stats, GrammarBytes());
  json["latencies"] = LatenciesJson();
  json["requests"] = Pick(counters, kRequests);
  json["errors"] = ErrorsJson(counters, cache_);
  json["errors"]["stores_unreachable"] = store_ != nullptr && !store_->is_reached() ? 1 : 0;
}

}  // namespace hearth
