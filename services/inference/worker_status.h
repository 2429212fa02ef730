// WorkerStatus: the figures of a worker's status page, as JSON: requests, the memory of keys and
// values, the sources of prompts' tokens, and the durations of requests.
//
// The page shows no tenant's content. Thread safety: all methods from any thread. Ownership: the
// engine and the counters must outlive the WorkerStatus.
#ifndef HEARTH_SERVICES_INFERENCE_WORKER_STATUS_H_
#define HEARTH_SERVICES_INFERENCE_WORKER_STATUS_H_

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/clock.h"
#include "proto/store_stats.pb.h"
#include "services/inference/cache_counters.h"
#include "services/serving/reachability.h"
#include "services/serving/status_figures.h"
#include "worker/engine/engine.h"
#include "worker/text/grammar.h"

namespace hearth {

// Sets the figures of a worker's report to its store: load, and totals since the start.
void FillReport(const Engine& engine, v1::ReportRequest* report);

class WorkerStatus {
 public:
  // The page shows the durations of this many latest requests.
  static constexpr size_t kRecentRequests = 1000;

  // `cache` null: no store. `clock` null: the system clock. `store` null: no store in another
  // process.
  WorkerStatus(const Engine* engine, const CacheCounters* cache, std::string version,
               Clock* clock = nullptr, const Reachability* store = nullptr);

  StatusFigures* figures() { return &figures_; }
  void RecordTimes(const FinishedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  // Shows the memory of grammars from now on. Any thread may call `stats`. Null: stop showing it.
  void ShowGrammars(std::function<GrammarEngine::Stats()> stats) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Series {
    const char* name;
    double FinishedInfo::*ms;
  };
  static constexpr std::array<Series, 5> kSeries = {{{"ttft", &FinishedInfo::ttft_ms},
                                                     {"queue", &FinishedInfo::queue_ms},
                                                     {"load", &FinishedInfo::fetch_ms},
                                                     {"prefill", &FinishedInfo::prefill_ms},
                                                     {"request", &FinishedInfo::total_ms}}};
  uint64_t GrammarBytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  Json LatenciesJson() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(Json* json) const ABSL_LOCKS_EXCLUDED(mutex_);

  const Engine* const engine_;
  const CacheCounters* const cache_;
  const Reachability* const store_;
  mutable absl::Mutex mutex_;
  // Durations of recent requests in milliseconds, by series (kSeries). All deques have the same
  // length.
  std::array<std::deque<double>, kSeries.size()> recent_ ABSL_GUARDED_BY(mutex_);
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<GrammarEngine::Stats()> grammars_ ABSL_GUARDED_BY(mutex_);
  StatusFigures figures_;  // last member: it uses the other members
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_WORKER_STATUS_H_
