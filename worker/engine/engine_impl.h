// EngineImpl: the engine's one thread, and what it steps.
//
// The thread goes round: end what was cancelled or expired, give free places away, begin what has
// its prefix, take one step. A step has a part of one sequence, some tokens of its prompt or one
// that is decoded; where the model batches, a part of each that decodes and of some that prefill.
// Nothing waits longer than a step for its place or its turn. Lookups in the cache and publishes
// run on their own threads and only leave results behind.
//
// Thread safety: as Engine. `mu_` is never held across a step, a callback, a copy or a cache call.
// Private to the engine's sources.
#ifndef HEARTH_WORKER_ENGINE_ENGINE_IMPL_H_
#define HEARTH_WORKER_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/engine/engine.h"
#include "worker/engine/engine_audit.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/kv_room.h"
#include "worker/engine/prefix_fetcher.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/prefix_restorer.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/scheduler.h"
#include "worker/engine/sequence.h"
#include "worker/engine/task_queue.h"

namespace hearth {

class EngineImpl : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<ModelRunner> model,
             std::string why_not_invariant);
  ~EngineImpl() override;
  // Starts the thread, which computes the canary, and with it the fingerprint. Called once.
  absl::Status Start();

  void SetCache(PrefixCache* cache) override;
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request,
                                                              EngineCallbacks callbacks) override;
  void Drain(absl::Time deadline) override;
  const ModelConfig& config() const override { return model_->config(); }
  const Fingerprint& fingerprint() const override { return fingerprint_; }
  const KvLayout& layout() const override { return layout_; }
  std::string device() const override { return model_->device_kind(); }
  std::string dtype() const override { return KvDtypeName(model_->kv_dtype()); }
  std::string weights() const override { return model_->weights(); }
  std::vector<std::string> notes() const override;
  std::vector<std::string> warnings() const override;
  std::string why_not_invariant() const override { return why_not_invariant_; }
  EngineStats Stats() const override;
  LoadReport EstimateLoad(uint32_t boundary) const override;

 private:
  using SequencePtr = std::shared_ptr<Sequence>;
  class Handle;
  // Lets handles outlive the engine.
  struct Link {
    absl::Mutex mu;
    EngineImpl* engine ABSL_GUARDED_BY(mu) = nullptr;
  };
  struct Ending {
    SequencePtr sequence;
    absl::Status status;
  };
  // Of a step: the next `tokens` of a sequence's prompt, or the token that it decodes.
  struct Part {
    SequencePtr sequence;
    StepKind kind = StepKind::kPrefill;
    uint32_t tokens = 1;
  };
  struct Round {
    std::vector<Ending> endings;
    bool admitting = false;  // somebody waits for a place, or for memory, that may be there
    std::vector<SequencePtr> looked_up;
    std::vector<Part> step;           // empty: nothing to step
    PrefixCache* auditing = nullptr;  // what an audit asks: there is nothing else to do
  };
  // Those that might have a place but found no memory, and what was so when they were tried.
  struct Lacking {
    std::set<SequenceId> tried;
    uint64_t free_bytes = 0, releases = 0;
  };

  // engine_impl.cc: the thread and its rounds.
  void Run(absl::Notification* started, absl::Status* start_status);
  absl::Status ComputeFingerprint();
  std::optional<Round> NextRound() ABSL_LOCKS_EXCLUDED(mu_);
  void Sweep(absl::Time now, Round* round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WhyEnd(const Sequence& sequence, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Time NextTimer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Ring() ABSL_LOCKS_EXCLUDED(mu_);
  PrefixCache* cache() const ABSL_LOCKS_EXCLUDED(mu_);

  // engine_room.cc: from the queue to a place, and from there to the first step.
  bool MayAdmit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool LackingIsOver() const;
  SequencePtr Candidate() const ABSL_LOCKS_EXCLUDED(mu_);
  bool RunsNobody() const ABSL_LOCKS_EXCLUDED(mu_);
  void AdmitWaiting();
  void LookUp(const SequencePtr& sequence);
  LoadTrial::Work WorkOf(const Sequence& sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  void Begin(const SequencePtr& sequence);
  // Of a step while requests decode.
  uint32_t step_rows() const {
    return options_.step_tokens > 0 ? options_.step_tokens : layout_.chunk_tokens;
  }

  // engine_steps.cc: steps, and the end.
  Part PartOf(const PlannedStep& planned) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PlanStep(Round* round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Step(const std::vector<Part>& parts);
  absl::Status StepModel(absl::Span<const Part> parts);
  absl::Status AfterPart(const Part& part);
  absl::Status AfterPrefill(const Part& part);
  absl::Status AfterDecode(const SequencePtr& sequence);
  absl::Status FinishPrefill(const SequencePtr& sequence);
  absl::Status BeginSamples(const SequencePtr& first);
  absl::StatusOr<std::optional<FinishReason>> Emit(Sequence* sequence);
  void HashLogits(Sequence* sequence);
  void CountHeld(const Sequence& sequence) const;
  void Finish(const SequencePtr& sequence, FinishReason reason);
  void TellFinished(const SequencePtr& sequence, FinishedInfo info);
  void Fail(const SequencePtr& sequence, const absl::Status& status);
  void Leave(Sequence* sequence) ABSL_LOCKS_EXCLUDED(mu_);
  void StopWaiting(Sequence* sequence) ABSL_LOCKS_EXCLUDED(mu_);
  void Left() ABSL_LOCKS_EXCLUDED(mu_);

  const EngineOptions options_;
  const std::unique_ptr<ModelRunner> model_;
  const std::string why_not_invariant_;
  const KvLayout layout_;
  Fingerprint fingerprint_;  // constant once Start is over
  mutable EngineCounters counters_;
  PrefixKeeper keeper_;
  PrefixFetcher fetcher_;
  // The engine's thread only.
  EngineAudit audit_;
  KvRoom room_;
  PrefixRestorer restorer_;
  Lacking lacking_;
  std::atomic<uint64_t> releases_{0};  // times that somebody may have let memory go
  const std::shared_ptr<Link> link_ = std::make_shared<Link>();

  mutable absl::Mutex mu_;
  absl::CondVar bell_;  // something for the thread to look at
  PrefixCache* cache_ ABSL_GUARDED_BY(mu_) = nullptr;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  std::map<SequenceId, SequencePtr> sequences_ ABSL_GUARDED_BY(mu_);
  uint32_t active_ ABSL_GUARDED_BY(mu_) = 0;  // accepted, last callback not yet returned
  SequenceId next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool out_of_time_ ABSL_GUARDED_BY(mu_) = false;  // the drain's deadline passed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  TaskQueue digests_;
  std::thread thread_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_IMPL_H_
