// StatusFigures: the JSON of a program's status page: program, version, and the growth of its
// counters in each of the last kSteps steps of ten seconds.
//
// The JSON text is reused for one second, so that frequent calls cost little. Thread safety: all
// methods from any thread; the source is called by one thread at a time. Ownership: the data that
// the source reads must outlive the StatusFigures.
#ifndef HEARTH_SERVICES_SERVING_STATUS_FIGURES_H_
#define HEARTH_SERVICES_SERVING_STATUS_FIGURES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/repeating_thread.h"
#include "services/serving/json_value.h"
#include "services/serving/metrics.h"

namespace hearth {

class StatusFigures {
 public:
  static constexpr absl::Duration kStep = absl::Seconds(10);
  static constexpr size_t kSteps = 60;  // steps on the page: ten minutes

  // Counter values since the start, by name; always the same names in the same order.
  using Totals = std::vector<std::pair<const char*, uint64_t>>;
  struct Source {
    std::function<Totals()> totals;
    std::function<void(Json*)> add;  // adds all other fields of the page
  };

  // `clock`: null for the system clock.
  StatusFigures(std::string program, std::string version, Source source, Clock* clock = nullptr);

  // Adds the status page and /status.json. REQUIRES: this outlives the server of `metrics`.
  void AddPages(Metrics* metrics);
  // From now on, calls Sample every kStep.
  void Start();
  // Stops sampling. Afterwards the data that the source reads may be destroyed.
  void Stop() { sampler_.reset(); }
  // Adds a step: the growth of the counters since the last step.
  void Sample() ABSL_LOCKS_EXCLUDED(mutex_);
  std::string JsonText() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Json Growth(const Totals& now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Make() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string program_, version_;
  const Source source_;
  SystemClock system_clock_;
  Clock* const clock_;
  const absl::Time start_;
  absl::Mutex mutex_;
  Totals last_ ABSL_GUARDED_BY(mutex_);
  std::deque<Json> steps_ ABSL_GUARDED_BY(mutex_);  // the oldest step first
  std::string made_ ABSL_GUARDED_BY(mutex_);
  absl::Time made_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::unique_ptr<RepeatingThread> sampler_;  // last member: its thread uses the other members
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_STATUS_FIGURES_H_
