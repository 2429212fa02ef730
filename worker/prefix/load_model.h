// LoadModel: decides whether to load a stored prefix or to compute it, by the speeds that this
// worker measured.
//
// The faster alternative wins. If a speed is unknown, the prefix is loaded. A source that was too
// slow is retried after a while. The decision is made once, when the plan of the transfer has
// arrived, and sets time limits for the transfer. A wrong decision costs time only. Two boundaries
// are compared: the restored one and the longest stored one. With longer boundaries, the bytes grow
// ever more slowly (sliding windows) and the computing time ever faster (attention), so no boundary
// between the two costs less than both.
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

// In the order of the names of --load.
enum class LoadChoice { kAuto, kAlways, kNever };

// Where a plan's bytes come from. If there are several sources, the slowest counts.
enum class LoadSource { kWire, kWireDisk, kShared, kDevice, kCount };

enum class LoadDecision {
  kNone,       // store not asked (no store, no reads, or no gain), or no plan arrived
  kMiss,       // the store had no longer prefix, or an invalid one
  kLoad,       // the stored prefix was loaded
  kCompute,    // not loaded, or not requested: computing is faster
  kAbandoned,  // the load exceeded its limits
};

// Time limits of a transfer, and of the wait for each of its messages.
struct LoadLimits {
  absl::Duration transfer, message;
};

struct LoadReport {
  LoadDecision decision = LoadDecision::kNone;
  std::optional<LoadSource> source;  // source of the stored bytes; empty: fastest source
  uint32_t boundary = 0;             // boundary that the store offers
  uint64_t bytes = 0;  // bytes to load: offered by the store, or estimated from the boundary
  // Empty if unknown. compute_estimate: time to compute the tokens that a load would save.
  std::optional<absl::Duration> load_estimate, compute_estimate;
  std::optional<LoadLimits> limits;  // empty: only the fetch's timeout applies
  bool retries = false;              // true if a source that was too slow is tried again

  // Measured by the fetch: time until the plan arrived, and time from the plan to the end of the
  // transfer.
  std::optional<absl::Duration> plan_took;
  absl::Duration took = absl::ZeroDuration();
  bool is_late = false;  // the plan or the transfer exceeded its limit
  // Bytes of an abandoned transfer, including half of the message that did not arrive.
  uint64_t received = 0;
};

// The computing that a load may save.
struct LoadWork {
  uint32_t have_tokens = 0, tokens = 0;  // tokens restored so far; all tokens of the prompt
  uint32_t others = 0;                   // concurrent prompts of about the same length
};

class LoadModel {
 public:
  // Returns the time of a monotonic clock. Use differences only.
  static absl::Time SteadyNow() {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
  explicit LoadModel(LoadChoice choice = LoadChoice::kAuto,
                     std::function<absl::Time()> clock = SteadyNow)
      : choice_(choice), clock_(std::move(clock)) {}
  absl::Time Now() const { return clock_(); }

  // OnStep records the duration of a prefill step of `tokens` tokens. OnFetch records the durations
  // of a fetch.
  void OnStep(uint32_t tokens, absl::Duration took);
  void OnFetch(const LoadReport& load);

  // Sets both estimates of `load`, and its decision: kLoad or kCompute.
  void Compare(const LoadWork& work, LoadReport* load) const;
  // As Compare, but also obeys the LoadChoice and sets the limits of the transfer. If `load` has no
  // source, decides whether to ask the store.
  void Decide(const LoadWork& work, LoadReport* load);

 private:
  struct Rate {
    double seconds = 0, units = 0;  // sums in which older measurements count less
    absl::Time at;                  // time of the last measurement or retry
    std::optional<absl::Duration> TimeOf(uint64_t more) const {
      if (units == 0) return std::nullopt;
      return absl::Seconds(seconds / units * static_cast<double>(more));
    }
    // Adds a measurement and multiplies the weight of all earlier measurements by `kept`.
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
  Rate computing_ ABSL_GUARDED_BY(mu_);  // speed of computing, in tokens
  Rate plans_ ABSL_GUARDED_BY(mu_);
  // Speed of loading from each source, in bytes.
  std::array<Rate, static_cast<size_t>(LoadSource::kCount)> loads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_LOAD_MODEL_H_
