// RoundPlanner: holds the sequences of an engine, and plans its thread's next round: which of them
// end, which get a place, which begin, and whose tokens the next step has.
//
// Thread safety: all methods from any thread. One lock, held for bookkeeping alone: never across a
// step, a callback, a copy or a cache call.
// Ownership: all its arguments must outlive it.
// Invariants: 1. Every id in the scheduler has a sequence here. 2. A sequence that was removed
// stays active until NoteDone. 3. Ids are in order of arrival; those of a request's sequences
// follow each other.
#ifndef HEARTH_WORKER_ENGINE_ROUND_PLANNER_H_
#define HEARTH_WORKER_ENGINE_ROUND_PLANNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/engine/engine.h"
#include "worker/engine/engine_audit.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/scheduler.h"
#include "worker/engine/sequence.h"

namespace hearth {

using SequencePtr = std::shared_ptr<Sequence>;

// Of a step: the next `tokens` of a sequence's prompt, or the token that it decodes and those that
// it guessed behind it.
struct SequencePart {
  SequencePtr sequence;
  StepKind kind = StepKind::kPrefill;
  uint32_t tokens = 1;
};

// The work of one round of the engine's thread, in this order.
struct EngineRound {
  struct Ending {
    SequencePtr sequence;
    absl::Status status;
  };
  std::vector<Ending> endings;  // no longer here; done with NoteDone
  bool admits = false;          // a sequence waits for memory, and there may be more
  struct LookedUp {
    SequencePtr sequence;
    FetchOutcome fetched;  // empty if it came too late
  };
  std::vector<LookedUp> looked_up;
  // Empty: nothing to step. One step if the model batches, else a step for each part, in order.
  std::vector<SequencePart> step;
  PrefixCache* auditing = nullptr;  // for an audit; set when there is nothing else to do
};

class RoundPlanner {
 public:
  RoundPlanner(const EngineOptions& options, const KvLayout& layout, const ModelRunner* model,
               EngineCounters* counters);

  // REQUIRES: nothing is active.
  void SetCache(PrefixCache* cache) ABSL_LOCKS_EXCLUDED(mu_);
  PrefixCache* cache() const ABSL_LOCKS_EXCLUDED(mu_);

  // A new sequence, in the queue. kResourceExhausted: the queue is full, and no tenant has more
  // than this one: else the newest that waits of that tenant ends so. kUnavailable: draining.
  absl::StatusOr<SequencePtr> Accept(EngineRequest request, EngineCallbacks callbacks)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Wakes the engine's thread.
  void WakeEngine() ABSL_LOCKS_EXCLUDED(mu_);
  // Memory was freed: the sequence that waits for some is tried again.
  void NoteMemoryFreed() ABSL_LOCKS_EXCLUDED(mu_);
  // Accepts nothing more; waits until nothing is active. Ends active sequences at the deadline.
  void Drain(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all sequences, after which Next returns nothing. Returns the cache.
  PrefixCache* Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // The engine's thread: waits until there is something to do; nothing once all has stopped.
  std::optional<EngineRound> Next(const EngineAudit& audit) ABSL_LOCKS_EXCLUDED(mu_);
  // The sequence whose turn it is, if there are places for it; else null.
  SequencePtr Candidate() const ABSL_LOCKS_EXCLUDED(mu_);
  // False: another tenant's request took its place in the queue; it ends with the next round.
  bool Admit(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // The request's own prefill, and those beside it.
  LoadWork WorkOf(const Sequence& sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: the sequence has steps.
  void StartPrefill(const Sequence& sequence) ABSL_LOCKS_EXCLUDED(mu_);
  void StartDecode(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // The planned step computes `tokens` fewer tokens of the prompt.
  void ReturnTokens(SequenceId id, uint32_t tokens) ABSL_LOCKS_EXCLUDED(mu_);
  // The sequences that have a KV.
  std::vector<SequencePtr> WithKv() const ABSL_LOCKS_EXCLUDED(mu_);
  // The sequence to preempt for `lacking` (Scheduler::Victim), never one of the same search. Null:
  // none.
  SequencePtr Victim(const Sequence& lacking) const ABSL_LOCKS_EXCLUDED(mu_);
  // Puts the rest of a preempted sequence in its place. It waits in the queue for `places`.
  void Requeue(const SequencePtr& rest, uint32_t places) ABSL_LOCKS_EXCLUDED(mu_);
  // Sample, or beam, `number` of the request, which decodes.
  SequencePtr Fork(const SequencePtr& first, uint32_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a fork without callbacks. Its place is kept for another fork of `first`.
  void RemoveFork(const Sequence& first, SequenceId fork) ABSL_LOCKS_EXCLUDED(mu_);
  // Its place is free.
  void Remove(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // The last callback of a sequence has returned.
  void NoteDone() ABSL_LOCKS_EXCLUDED(mu_);

  void AddTo(EngineStats* stats) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status QueueIsFull(const char* more) const;
  void Sweep(absl::Time now, EngineRound* round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status EndStatus(const Sequence& sequence, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PlanStep(EngineRound* round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SequencePart PartOf(const PlannedStep& planned) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Time NextTimer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of a step while requests decode.
  uint32_t step_rows() const {
    return options_.step_tokens > 0 ? options_.step_tokens : layout_.chunk_tokens;
  }

  const EngineOptions& options_;
  const KvLayout& layout_;
  const ModelRunner* const model_;
  EngineCounters* const counters_;

  mutable absl::Mutex mu_;
  absl::CondVar work_arrived_;  // something for the engine's thread to look at
  PrefixCache* cache_ ABSL_GUARDED_BY(mu_) = nullptr;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  std::map<SequenceId, SequencePtr> sequences_ ABSL_GUARDED_BY(mu_);
  std::set<SequenceId> dropped_ids_ ABSL_GUARDED_BY(mu_);  // to others' requests; they end
  uint32_t active_ ABSL_GUARDED_BY(mu_) = 0;  // accepted, last callback not yet returned
  SequenceId next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool retries_admission_ ABSL_GUARDED_BY(mu_) =
      false;  // there may be more places or memory than before
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool out_of_time_ ABSL_GUARDED_BY(mu_) = false;  // the drain's deadline passed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ROUND_PLANNER_H_
