// LoadModel: predicts the costs of loading and of computing a stored prefix from recent ones.
//
// It learns from all requests of a worker: how long a plan takes to come, how fast bytes come from
// each source, how fast prompts are computed at each position, and which transfers are under way. A
// source that was found too slow is probed again now and then, beside a request that computes.
//
// Only two boundaries need to be compared, the worker's own and the longest that is stored: bytes
// grow ever slower with the boundary (windows), computing ever faster (attention), so any boundary
// between costs more than the better of these two.
//
// Thread safety: all methods from any thread. Times are of a steady clock, or the test's.
#ifndef HEARTH_WORKER_PREFIX_LOAD_MODEL_H_
#define HEARTH_WORKER_PREFIX_LOAD_MODEL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/prefix/step_costs.h"

namespace hearth {

// In the order of the flag's names.
enum class LoadChoice { kAuto, kAlways, kNever };

// Where a plan's bytes come from: the slowest part of it.
enum class LoadSource { kWire, kWireDisk, kShared, kDevice, kLocal, kLocalDisk, kCount };
const char* LoadSourceName(LoadSource source);

class LoadModel {
 public:
  using Clock = std::function<absl::Time()>;
  static absl::Time SteadyNow();

  explicit LoadModel(LoadChoice choice = LoadChoice::kAuto, Clock clock = SteadyNow)
      : choice_(choice), clock_(std::move(clock)) {}

  LoadChoice choice() const { return choice_; }
  absl::Time Now() const { return clock_(); }

  // Observations.
  void OnStep(uint32_t rows, double position, absl::Duration took) ABSL_LOCKS_EXCLUDED(mu_);
  // From the question to the plan. `late`: it did not come until then.
  void OnPlan(absl::Duration took, bool late = false) ABSL_LOCKS_EXCLUDED(mu_);
  // `bytes` came from `source`. `cut_off`: the transfer was ended early; then this replaces all
  // that was learned about the source.
  void OnLoad(LoadSource source, uint64_t bytes, absl::Duration took, bool cut_off = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A transfer of so many bytes begins; has ended.
  void OnBegin(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnd(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Predictions; nullopt: nothing is known yet.
  std::optional<absl::Duration> ComputeTime(uint32_t begin, uint32_t end,
                                            uint32_t step_tokens) const ABSL_LOCKS_EXCLUDED(mu_);
  // From the plan on.
  std::optional<absl::Duration> LoadTime(LoadSource source, uint64_t bytes) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // From the question on, by the best known source; without one the time of a plan.
  std::optional<absl::Duration> LeastLoadTime(uint64_t bytes) const ABSL_LOCKS_EXCLUDED(mu_);

  // Whether it is time to probe a source that was found too slow, or all of them where no store was
  // asked. True: the caller must probe.
  bool MayProbe(std::optional<LoadSource> source) ABSL_LOCKS_EXCLUDED(mu_);
  // A probe measured it: the pause before the next probe but one is twice as long. A probe that
  // measured nothing changes no pause.
  void OnProbed(std::optional<LoadSource> source) ABSL_LOCKS_EXCLUDED(mu_);
  // Loading from it is worth it again: its pauses begin anew.
  void OnAccepted(LoadSource source) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Rate {
    double seconds = 0, bytes = 0;  // sums, of which the older count half with each that comes
    bool known() const { return bytes > 0; }
  };
  absl::Duration LoadTimeLocked(const Rate& rate, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const LoadChoice choice_;
  const Clock clock_;
  mutable absl::Mutex mu_;
  StepCosts steps_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Duration> plan_ ABSL_GUARDED_BY(mu_);
  bool plan_was_late_ ABSL_GUARDED_BY(mu_) = false;
  std::array<Rate, static_cast<size_t>(LoadSource::kCount)> rates_ ABSL_GUARDED_BY(mu_);
  uint64_t under_way_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  struct Probes {
    absl::Time next = absl::InfinitePast();
    absl::Duration pause;
  };
  // The last one is of what nobody was asked for.
  std::array<Probes, static_cast<size_t>(LoadSource::kCount) + 1> probes_ ABSL_GUARDED_BY(mu_);
  Probes& ProbesOf(std::optional<LoadSource> source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    mu_.AssertHeld();
    return probes_[static_cast<size_t>(source.value_or(LoadSource::kCount))];
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_LOAD_MODEL_H_
