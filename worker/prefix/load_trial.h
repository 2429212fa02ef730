// LoadTrial: one request's choice between loading and computing, and its outcome.
//
// The engine asks it before it asks the store, the cache when the plan has come and between
// messages: a transfer that has become slower than computing is cut off. A trial that was not armed
// loads everything and learns nothing. Safe by construction: it only makes a cache miss, or be
// asked less often, and a miss changes no result.
//
// Thread safety: all methods from any thread. Ownership: the model must outlive its calls, and
// itself while a transfer is under way.
#ifndef HEARTH_WORKER_PREFIX_LOAD_TRIAL_H_
#define HEARTH_WORKER_PREFIX_LOAD_TRIAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/prefix/load_model.h"

namespace hearth {

enum class LoadDecision {
  kNone,       // nothing was asked for: no store, no reads, or the worker has all of it
  kMiss,       // the store had nothing above what the worker has
  kLoad,       // what was stored was loaded
  kCompute,    // it was not, or not asked for: computing is faster
  kAbandoned,  // a load that became slower than computing
};
const char* LoadDecisionName(LoadDecision decision);

struct LoadReport {
  LoadDecision decision = LoadDecision::kNone;
  std::optional<LoadSource> source;  // of what was offered
  uint32_t boundary = 0;             // likewise
  uint64_t bytes = 0;                // offered, or where nobody asked the most that would come
  // Empty where unknown. The compute estimate is the time that a load saves.
  std::optional<absl::Duration> load_estimate, compute_estimate;
  absl::Duration took = absl::ZeroDuration();  // from the plan until it was restored or cut off
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
  LoadTrial() = default;
  ~LoadTrial();  // of a fetch that threw: what was under way is over
  LoadTrial(const LoadTrial&) = delete;
  LoadTrial& operator=(const LoadTrial&) = delete;

  // The request's tokens, and the prefills beside it.
  struct Work {
    uint32_t have_tokens = 0, tokens = 0;
    uint32_t step_tokens = 1;
    // Tokens that each other prompt still has to compute, where all take turns.
    std::vector<uint32_t> beside;
    // Where they share steps as Scheduler says: those before it unless they are longer; the oldest,
    // which has half of its tenant's rows; of the former the one that shares these, also if it is
    // longer; and of each other tenant, which has as many rows.
    std::vector<uint32_t> by_length;
    uint32_t oldest = 0, promised = 0;
    std::vector<uint32_t> tenants;
    // How many tokens pass through the model until `own` of this one have.
    double TokensUntil(uint32_t own) const;
    absl::Duration budget =
        absl::InfiniteDuration();  // for the plan; for all where nothing is known
  };
  // Called when a load may take longer than the budget, with the longest time from now on.
  using Extend = std::function<void(absl::Duration)>;

  void Arm(LoadModel* model, Work work, Extend extend = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // Arms a probe beside a request that computes: a little is loaded, and dropped. `why`: the source
  // that was found too slow; empty where no store was asked.
  void ArmProbe(LoadModel* model, std::optional<LoadSource> why = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_);
  // For another fetch of the same request, which has more tokens by now.
  std::shared_ptr<LoadTrial> Next(uint32_t have_tokens) const ABSL_LOCKS_EXCLUDED(mu_);

  // The engine: whether anything up to `boundary`, which takes `bytes`, may be worth loading.
  bool WorthAsking(uint32_t boundary, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // How long the plan may take.
  absl::Duration PlanPatience() ABSL_LOCKS_EXCLUDED(mu_);

  // The cache: it asks now; the plan came, or `late` it did not; what it offers is worth loading.
  void OnAsk() ABSL_LOCKS_EXCLUDED(mu_);
  void OnPlan(bool late = false) ABSL_LOCKS_EXCLUDED(mu_);
  bool Accepts(const LoadOffer& offer) ABSL_LOCKS_EXCLUDED(mu_);
  // How long to wait for the next message after so many bytes: zero to stop now; empty where only
  // the caller's deadline counts.
  std::optional<absl::Duration> Patience(uint64_t received_bytes) const ABSL_LOCKS_EXCLUDED(mu_);
  // The patience ended, or the caller's deadline passed (kMiss); everything came; it ended
  // otherwise.
  void OnCutOff(uint64_t received_bytes, LoadDecision decision = LoadDecision::kAbandoned)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnArrived() ABSL_LOCKS_EXCLUDED(mu_);
  void OnFailed() ABSL_LOCKS_EXCLUDED(mu_);
  // The engine: the objects were restored, which took so long.
  void OnRestored(absl::Duration copied) ABSL_LOCKS_EXCLUDED(mu_);

  bool is_probe() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the plan had less time than the budget: then a late plan does not mean that the store
  // is gone.
  bool is_hurried() const ABSL_LOCKS_EXCLUDED(mu_);
  // A probe of the source because of which computing was chosen, if it is time for one. Else null.
  std::shared_ptr<LoadTrial> TakeProbe() ABSL_LOCKS_EXCLUDED(mu_);
  LoadReport report() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool Decides() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return model_ != nullptr && !probe_ && model_->choice() == LoadChoice::kAuto;
  }
  uint64_t ComingBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<absl::Duration> Spares(uint32_t boundary) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndTransfer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  LoadModel* model_ ABSL_GUARDED_BY(mu_) = nullptr;
  Work work_ ABSL_GUARDED_BY(mu_);
  Extend extend_ ABSL_GUARDED_BY(mu_);
  bool probe_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<LoadSource> probe_why_ ABSL_GUARDED_BY(mu_);
  bool hurried_ ABSL_GUARDED_BY(mu_) = false;
  bool transfers_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time asked_ ABSL_GUARDED_BY(mu_), accepted_ ABSL_GUARDED_BY(mu_);
  LoadOffer offer_ ABSL_GUARDED_BY(mu_);
  LoadReport report_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_LOAD_TRIAL_H_
