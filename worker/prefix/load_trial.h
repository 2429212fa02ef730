// The choice between loading a stored prefix and computing it: LoadModel has the rates that a
// worker measured, a LoadTrial is the choice of one request.
//
// What takes less time at the rates measured last is chosen; what is not known is loaded, and what
// was too slow is tried again after a while. A transfer that has become slower than computing is
// cut off. A wrong choice makes a cache miss, which changes no result. Only two boundaries are
// compared, the worker's own and the longest that is stored: bytes grow ever slower with the
// boundary (windows), computing ever faster (attention), so no other one costs less than both.
//
// Thread safety: all methods from any thread. Ownership: the model must outlive its trials' use.
#ifndef HEARTH_WORKER_PREFIX_LOAD_TRIAL_H_
#define HEARTH_WORKER_PREFIX_LOAD_TRIAL_H_

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

class LoadModel {
 public:
  static absl::Time SteadyNow() {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
  explicit LoadModel(LoadChoice choice = LoadChoice::kAuto,
                     std::function<absl::Time()> clock = SteadyNow)
      : choice_(choice), clock_(std::move(clock)) {}
  LoadChoice choice() const { return choice_; }
  absl::Time Now() const { return clock_(); }

  // So many tokens were computed; bytes loaded; a plan came, or was waited for no longer. `alone`:
  // what was measured before counts no more.
  void OnStep(uint32_t tokens, absl::Duration took);
  void OnLoad(LoadSource source, uint64_t bytes, absl::Duration took, bool alone = false);
  void OnPlan(absl::Duration took) { OnLoad(LoadSource::kCount, 1, took, /*alone=*/true); }

  // Nullopt: nothing is known yet. Of a load, from the plan on; kCount: by the best source, with
  // the plan.
  std::optional<absl::Duration> ComputeTime(uint64_t tokens) const {
    absl::MutexLock lock(&mu_);
    return computing_.TimeOf(tokens);
  }
  std::optional<absl::Duration> LoadTime(LoadSource source, uint64_t bytes) const;
  // Whether to try all the same what was too slow; kCount: any source. Once in a while.
  bool TriesAgain(LoadSource source);

 private:
  struct Rate {
    double seconds = 0, units = 0;  // sums, in which what is older counts less
    absl::Time at;                  // of the last measurement, or trial
    std::optional<absl::Duration> TimeOf(uint64_t more) const {
      if (units == 0) return std::nullopt;
      return absl::Seconds(seconds / units * static_cast<double>(more));
    }
    void Add(double kept, uint64_t more, absl::Duration took) {
      seconds = seconds * kept + absl::ToDoubleSeconds(took);
      units = units * kept + static_cast<double>(more);
    }
  };
  const LoadChoice choice_;
  const std::function<absl::Time()> clock_;
  mutable absl::Mutex mu_;
  Rate computing_ ABSL_GUARDED_BY(mu_);
  // By source, of bytes; the last one is of plans.
  std::array<Rate, static_cast<size_t>(LoadSource::kCount) + 1> loads_ ABSL_GUARDED_BY(mu_);
};

enum class LoadDecision {
  kNone,       // nothing was asked for (no store, no reads, nothing to gain), or no plan came
  kMiss,       // the store had nothing above what the worker has
  kLoad,       // what was stored was loaded
  kCompute,    // it was not, or not asked for: computing is faster
  kAbandoned,  // a load that became slower than computing
};

struct LoadReport {
  LoadDecision decision = LoadDecision::kNone;
  std::optional<LoadSource> source;  // of what was offered
  uint32_t boundary = 0;             // likewise
  uint64_t bytes = 0;                // offered, or where nobody asked the most that would come
  // Empty where unknown. The compute estimate is the time that a load saves.
  std::optional<absl::Duration> load_estimate, compute_estimate;
  absl::Duration took = absl::ZeroDuration();  // from the plan until all was there or cut off
  bool plan_was_late = false;
};

// The prefix that a plan offers.
struct LoadOffer {
  uint32_t boundary = 0;
  uint64_t bytes = 0;
  LoadSource source = LoadSource::kWire;
  uint64_t message_bytes = 0;  // the most that comes at once
};

class LoadTrial {
 public:
  struct Work {
    uint32_t have_tokens = 0, tokens = 0;              // the request's
    uint32_t others = 0;                               // as long as it, that are computed beside it
    absl::Duration budget = absl::InfiniteDuration();  // for the plan; where nothing is known, all
  };
  LoadTrial(LoadModel* model, const Work& work) : model_(model), work_(work) {}
  const Work& work() const { return work_; }

  // The engine: whether anything, of at most `bytes`, may be worth loading; how long the plan may
  // take, and all of it: a load that goes on as it should ends in time.
  bool WorthAsking(uint32_t boundary, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Duration PlanPatience() const;
  absl::Duration MostTime() const;

  // The cache: the plan that it asked for came after `took`, or `late` it did not; what it offers
  // is worth loading.
  void OnPlan(absl::Duration took, bool late = false) ABSL_LOCKS_EXCLUDED(mu_);
  bool Accepts(const LoadOffer& offer) ABSL_LOCKS_EXCLUDED(mu_);
  // How long to wait for the next message after so many bytes: zero to stop now; empty where only
  // the caller's deadline counts.
  std::optional<absl::Duration> Patience(uint64_t received_bytes) const ABSL_LOCKS_EXCLUDED(mu_);
  // The transfer is over: all of it came (kLoad), or it failed, or what came was not used (kMiss).
  // With a number of bytes: the patience ended (kAbandoned), or the caller's deadline passed.
  void OnEnd(LoadDecision decision, std::optional<uint64_t> received_bytes = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Time Now() const { return model_->Now(); }
  LoadReport report() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return report_;
  }

 private:
  bool Decides() const { return model_->choice() == LoadChoice::kAuto; }
  std::optional<absl::Duration> Spares(uint32_t boundary) const;
  // Takes down both estimates, and whether loading is chosen.
  bool Chooses(LoadSource source, uint32_t boundary, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  LoadModel* const model_;
  const Work work_;
  mutable absl::Mutex mu_;
  bool tries_ ABSL_GUARDED_BY(mu_) = false;                  // a source that was found too slow
  std::optional<absl::Time> accepted_ ABSL_GUARDED_BY(mu_);  // while a transfer is under way
  uint64_t message_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  LoadReport report_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_LOAD_TRIAL_H_
