// RoundPlanner: holds the engine's sequences and plans the next round: which sequences end, which
// are admitted, which begin, and which tokens the next step computes.
//
// Thread safety: all methods may be called from any thread. One lock, held for bookkeeping only:
// never during a step, a callback, a copy or a cache call.
// Ownership: all arguments must outlive the planner.
// Invariants: 1. Every id in the scheduler has a sequence here. 2. A removed sequence stays active
// until NoteDone. 3. Ids are in order of arrival; the ids of a request's sequences are consecutive.
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

// A sequence's part of a step: the next `tokens` prompt tokens, or a decoded token plus the guessed
// tokens after it.
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
  std::vector<Ending> endings;  // removed here; each ends with NoteDone
  bool admits = false;          // a sequence waits, and places or memory may be free
  struct LookedUp {
    SequencePtr sequence;
    FetchOutcome fetched;  // empty if the lookup was too late
  };
  std::vector<LookedUp> looked_up;
  // Empty: nothing to compute. One step if the model batches, else one step per part, in order.
  std::vector<SequencePart> step;
  PrefixCache* auditing = nullptr;  // set if an audit may run: there is no other work
};

class RoundPlanner {
 public:
  RoundPlanner(const EngineOptions& options, const KvLayout& layout, const ModelRunner* model,
               EngineCounters* counters);

  // REQUIRES: no sequence is active.
  void SetCache(PrefixCache* cache) ABSL_LOCKS_EXCLUDED(mu_);
  PrefixCache* cache() const ABSL_LOCKS_EXCLUDED(mu_);

  // Enqueues a new sequence. If the queue is full, drops the newest waiting request of a tenant
  // with more places; if there is none, returns kResourceExhausted. kUnavailable: draining.
  absl::StatusOr<SequencePtr> Accept(EngineRequest request, EngineCallbacks callbacks)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Wakes the engine's thread.
  void WakeEngine() ABSL_LOCKS_EXCLUDED(mu_);
  // Memory was freed: retry to admit the waiting sequence.
  void NoteMemoryFreed() ABSL_LOCKS_EXCLUDED(mu_);
  // Refuses new requests and waits until no sequence is active. At the deadline, ends active
  // sequences.
  void Drain(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all sequences; Next then returns nullopt. Returns the cache.
  PrefixCache* Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // For the engine's thread: waits for work. Returns nullopt after Stop.
  std::optional<EngineRound> Next(const EngineAudit& audit) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the next sequence to admit, or null if there is none or too few places are free.
  SequencePtr Candidate() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns false if the request was dropped for another tenant's; it ends in the next round.
  bool Admit(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the prefill work of `sequence` and of concurrent prompts.
  LoadWork WorkOf(const Sequence& sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: the sequence has steps to prefill.
  void StartPrefill(const Sequence& sequence) ABSL_LOCKS_EXCLUDED(mu_);
  void StartDecode(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Reduces the sequence's planned step by `tokens` prompt tokens.
  void ReturnTokens(SequenceId id, uint32_t tokens) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the sequences that have a KV.
  std::vector<SequencePtr> WithKv() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the sequence to preempt for `lacking` (see Scheduler::Victim), never a beam of the same
  // search, or null.
  SequencePtr Victim(const Sequence& lacking) const ABSL_LOCKS_EXCLUDED(mu_);
  // Replaces a preempted sequence by its continuation `rest`, which waits in the queue for
  // `places`.
  void Requeue(const SequencePtr& rest, uint32_t places) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds sample or beam `number` of the request, which decodes.
  SequencePtr Fork(const SequencePtr& first, uint32_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a fork without callbacks. Its place stays reserved for another fork of `first`.
  void RemoveFork(const Sequence& first, SequenceId fork) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees the sequence's places.
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
  // Rows of a step while requests decode.
  uint32_t step_rows() const {
    return options_.step_tokens > 0 ? options_.step_tokens : layout_.chunk_tokens;
  }

  const EngineOptions& options_;
  const KvLayout& layout_;
  const ModelRunner* const model_;
  EngineCounters* const counters_;

  mutable absl::Mutex mu_;
  absl::CondVar work_arrived_;  // the engine's thread has work
  PrefixCache* cache_ ABSL_GUARDED_BY(mu_) = nullptr;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  std::map<SequenceId, SequencePtr> sequences_ ABSL_GUARDED_BY(mu_);
  std::set<SequenceId> dropped_ids_ ABSL_GUARDED_BY(mu_);  // they end with the next round
  uint32_t active_ ABSL_GUARDED_BY(mu_) = 0;  // accepted, and last callback not returned
  SequenceId next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool retries_admission_ ABSL_GUARDED_BY(mu_) = false;  // places or memory may be free
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool out_of_time_ ABSL_GUARDED_BY(mu_) = false;  // the drain's deadline passed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ROUND_PLANNER_H_
