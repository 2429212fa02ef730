// LoadModel: decides whether to load or compute a stored prefix, by the rates that the worker
// measured.
//
// The faster alternative wins. If a rate is unknown, the prefix is loaded. A source that was too
// slow is retried after a while. The decision is made once, when the plan has arrived, and sets
// limits for the transfer. A wrong decision is a cache miss and changes no result. Only two
// boundaries are compared, the worker's own and the longest stored one: with a longer boundary the
// bytes grow ever slower (windows) and the computing grows ever faster (attention), so no boundary
// between them costs less than both.
//
// Thread safety: all methods may be called from any thread.
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

// Source of a plan's bytes: the slowest part counts.
enum class LoadSource { kWire, kWireDisk, kShared, kDevice, kCount };

enum class LoadDecision {
  kNone,       // store not asked (none, no reads, no gain), or no plan came
  kMiss,       // the store had nothing more, or a useless answer
  kLoad,       // the stored prefix was loaded
  kCompute,    // not loaded, or not requested: computing is faster
  kAbandoned,  // the load exceeded its limits
};

// Maximum durations of a transfer, and of the wait for each message.
struct LoadLimits {
  absl::Duration transfer, message;
};

struct LoadReport {
  LoadDecision decision = LoadDecision::kNone;
  std::optional<LoadSource> source;  // of the offer; empty: best source
  uint32_t boundary = 0;             // offered by the store
  uint64_t bytes = 0;                // offered, or the most that the store could offer
  // Empty if unknown. compute_estimate is the time that a load saves.
  std::optional<absl::Duration> load_estimate, compute_estimate;
  std::optional<LoadLimits> limits;  // empty: the fetch's deadline
  bool retries = false;              // retries a slow source

  // Measured by the fetch: time until the plan arrived, and from then until the transfer ended.
  std::optional<absl::Duration> plan_took;
  absl::Duration took = absl::ZeroDuration();
  bool is_late = false;   // plan or transfer was abandoned
  uint64_t received = 0;  // bytes of an abandoned transfer, plus half of the next message
};

// The computation that a load may save.
struct LoadWork {
  uint32_t have_tokens = 0, tokens = 0;  // held and total tokens of the request
  uint32_t others = 0;                   // concurrent prompts of the same length
};

class LoadModel {
 public:
  // A monotonic clock, for differences only.
  static absl::Time SteadyNow() {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
  explicit LoadModel(LoadChoice choice = LoadChoice::kAuto,
                     std::function<absl::Time()> clock = SteadyNow)
      : choice_(choice), clock_(std::move(clock)) {}
  absl::Time Now() const { return clock_(); }

  // Records the duration of a prefill step, and of a fetch.
  void OnStep(uint32_t tokens, absl::Duration took);
  void OnFetch(const LoadReport& load);

  // Sets both estimates of an offer, and the decision that follows: kLoad or kCompute.
  void Compare(const LoadWork& work, LoadReport* load) const;
  // As Compare, but obeys the LoadChoice and sets the limits of the transfer. Without a source,
  // decides whether to ask the store.
  void Decide(const LoadWork& work, LoadReport* load);

 private:
  struct Rate {
    double seconds = 0, units = 0;  // decaying sums
    absl::Time at;                  // last measurement or retry
    std::optional<absl::Duration> TimeOf(uint64_t more) const {
      if (units == 0) return std::nullopt;
      return absl::Seconds(seconds / units * static_cast<double>(more));
    }
    // Adds a measurement; earlier ones keep the share `kept` of their weight.
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
