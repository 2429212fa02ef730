// LoadModel: decides whether a stored prefix is loaded or computed, by the rates that the worker
// measured.
//
// The choice that takes less time at these rates wins. A prefix is loaded if a rate is unknown; a
// source that was too slow is tried again after a while. The decision is made once, when the plan
// has come, and sets limits to the transfer. A wrong choice is a cache miss, which changes no
// result. Only two boundaries are compared, the worker's own and the longest that is stored: bytes
// grow ever slower with the boundary (windows), computing ever faster (attention), so no boundary
// between them costs less than both.
//
// Thread safety: all methods from any thread.
#ifndef HEARTH_WORKER_PREFIX_LOAD_MODEL_H_
#define HEARTH_WORKER_PREFIX_LOAD_MODEL_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hearth {

// In the order of the flag's names.
enum class LoadChoice { kAuto, kAlways, kNever };

// Where a plan's bytes come from: the slowest part of it.
enum class LoadSource { kWire, kWireDisk, kShared, kDevice, kCount };

enum class LoadDecision {
  kNone,       // nothing was asked for (no store, no reads, nothing to gain), or no plan came
  kMiss,       // the store had nothing above what the worker has, or its answer was of no use
  kLoad,       // the stored prefix was loaded
  kCompute,    // it was not, or not asked for: computing is faster
  kAbandoned,  // a load that took longer than its limits
};

// How long a transfer may take, and how long the wait for each of its messages.
struct LoadLimits {
  absl::Duration transfer, message;
};

struct LoadReport {
  LoadDecision decision = LoadDecision::kNone;
  std::optional<LoadSource> source;  // of the offer; empty: the best one
  uint32_t boundary = 0;             // that the store offers
  uint64_t bytes = 0;                // offered; if the store was not asked, the most it could offer
  // Empty where unknown. The compute estimate is the time that a load saves.
  std::optional<absl::Duration> load_estimate, compute_estimate;
  std::optional<LoadLimits> limits;  // empty: the deadline of the fetch
  bool retries = false;              // a source that was too slow before

  // What the fetch measured: until the plan came, and from there until the transfer ended.
  std::optional<absl::Duration> plan_took;
  absl::Duration took = absl::ZeroDuration();
  bool is_late = false;   // the plan or the transfer was given up
  uint64_t received = 0;  // of a transfer that was given up, with half of the next message
};

// The computing that a load may save.
struct LoadWork {
  uint32_t have_tokens = 0, tokens = 0;  // the request's
  uint32_t others = 0;                   // prompts as long as it that are computed beside it
};

class LoadModel {
 public:
  // A clock that never goes back, for differences only: it does not tell the time of day.
  static absl::Time SteadyNow() {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
  explicit LoadModel(LoadChoice choice = LoadChoice::kAuto,
                     std::function<absl::Time()> clock = SteadyNow)
      : choice_(choice), clock_(std::move(clock)) {}
  absl::Time Now() const { return clock_(); }

  // Learns how long a prefill step, or a fetch, took.
  void OnStep(uint32_t tokens, absl::Duration took);
  void OnFetch(const LoadReport& load);

  // Sets both estimates of an offer, and the decision by them: kLoad or kCompute.
  void Compare(const LoadWork& work, LoadReport* load) const;
  // As Compare, by the worker's choice, with the limits of the transfer. Without a source: whether
  // to ask the store.
  void Decide(const LoadWork& work, LoadReport* load);

 private:
  struct Rate {
    double seconds = 0, units = 0;  // sums, in which what is older counts less
    absl::Time at;                  // of the last measurement, or retry
    std::optional<absl::Duration> TimeOf(uint64_t more) const {
      if (units == 0) return std::nullopt;
      return absl::Seconds(seconds / units * static_cast<double>(more));
    }
    // What was measured before keeps the share `kept` of its weight.
    void Add(double kept, uint64_t more, absl::Duration took) {
      seconds = seconds * kept + absl::ToDoubleSeconds(took);
      units = units * kept + static_cast<double>(more);
    }
  };
  std::optional<absl::Duration> LoadTime(const LoadReport& load) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const LoadChoice choice_;
  const std::function<absl::Time()> clock_;
  mutable absl::Mutex mu_;
  Rate computing_ ABSL_GUARDED_BY(mu_);  // tokens
  Rate plans_ ABSL_GUARDED_BY(mu_);
  std::array<Rate, static_cast<size_t>(LoadSource::kCount)> loads_ ABSL_GUARDED_BY(mu_);  // bytes
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_LOAD_MODEL_H_
