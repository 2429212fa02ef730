// RoundPlanner: holds the engine's sequences and plans the next round: which sequences end, are
// admitted, or start their prefill, and which tokens the next step computes.
//
// Thread safety: all methods may be called from any thread. One lock protects the planner. It is
// never held during a step, a callback, a copy or a cache call.
// Ownership: all arguments must outlive the planner.
// Invariants:
//  1. Each id in the scheduler has a sequence in `sequences_`.
//  2. A removed sequence counts as active until NoteDone.
//  3. Ids are in order of arrival. The ids of a request's sequences are consecutive.
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

// The tokens of one sequence in a step: its next `tokens` prompt tokens, or a decoded token and the
// guessed tokens that follow it.
struct SequencePart {
  SequencePtr sequence;
  StepKind kind = StepKind::kPrefill;
  uint32_t tokens = 1;
};

// The work of one round of the engine's thread. The fields are in the order of execution.
struct EngineRound {
  struct Ending {
    SequencePtr sequence;
    absl::Status status;
  };
  // Sequences to end (their places are free already); call NoteDone for each.
  std::vector<Ending> endings;
  bool admits = false;  // whether to try to admit waiting sequences
  struct LookedUp {
    SequencePtr sequence;
    FetchOutcome fetched;  // empty if the lookup exceeded its deadline
  };
  std::vector<LookedUp> looked_up;
  // The tokens to compute; may be empty. If the model batches, one step computes all parts, else
  // each part is a separate step, in this order.
  std::vector<SequencePart> step;
  // the cache whose prefixes to audit; null: there is other work, or nothing to audit
  PrefixCache* auditing = nullptr;
};

class RoundPlanner {
 public:
  RoundPlanner(const EngineOptions& options, const KvLayout& layout, const ModelRunner* model,
               EngineCounters* counters);

  // Returns the error of a request that its caller cancelled.
  static absl::Status Cancelled() { return absl::CancelledError("cancelled by the caller"); }

  // REQUIRES: no sequence is active.
  void SetCache(PrefixCache* cache) ABSL_LOCKS_EXCLUDED(mu_);
  PrefixCache* cache() const ABSL_LOCKS_EXCLUDED(mu_);

  // Enqueues a new sequence. If the queue is full, drops the newest waiting request of a tenant
  // that has more places. If no tenant has more, returns kResourceExhausted. kUnavailable: the
  // worker is draining.
  absl::StatusOr<SequencePtr> Accept(EngineRequest request, EngineCallbacks callbacks)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Wakes the engine's thread.
  void WakeEngine() ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the planner that memory was freed: the next round tries to admit waiting sequences.
  void NoteMemoryFreed() ABSL_LOCKS_EXCLUDED(mu_);
  // Refuses new requests and waits until no sequence is active. If `deadline` passes first, ends
  // the active sequences and returns.
  void Drain(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all sequences; once they have ended, Next returns nullopt. Returns the cache.
  PrefixCache* Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for work and returns the next round. Returns nullopt after Stop. Called by the engine's
  // thread only.
  std::optional<EngineRound> Next(const EngineAudit& audit) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the step of the next round if the round has nothing to do but decode: no sequence ends,
  // may be admitted, or starts or continues its prefill. Else returns no parts.
  std::vector<SequencePart> NextDecodes() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the next sequence to admit. Returns null if no sequence waits, or if too few places are
  // free.
  SequencePtr Candidate() const ABSL_LOCKS_EXCLUDED(mu_);
  // Admits the sequence. Returns false if the sequence was dropped in favour of another tenant's;
  // the next round ends it.
  bool Admit(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how many prompt tokens `sequence` must compute, and how many concurrent prompts compete
  // with it.
  LoadWork WorkOf(const Sequence& sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: the sequence has steps to prefill.
  void StartPrefill(const Sequence& sequence) ABSL_LOCKS_EXCLUDED(mu_);
  void StartDecode(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns `tokens` of the sequence's planned prompt tokens to the scheduler, to be planned again:
  // the step will not compute them.
  void ReturnTokens(SequenceId id, uint32_t tokens) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the sequences that have a KV.
  std::vector<SequencePtr> WithKv() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the sequence to preempt if `lacking` does not have memory (see Scheduler::Victim), or
  // null. Never returns a beam of the search to which `lacking` belongs.
  SequencePtr Victim(const Sequence& lacking) const ABSL_LOCKS_EXCLUDED(mu_);
  // Replaces a preempted sequence by its continuation `rest`, which waits in the queue until
  // `places` places are free.
  void Requeue(const SequencePtr& rest, uint32_t places) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds sample or beam `number` of the request whose first sequence is `first`. The new sequence
  // decodes.
  SequencePtr Fork(const SequencePtr& first, uint32_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a fork of `first` without calling callbacks. Its place stays reserved for another fork
  // of `first`.
  void RemoveFork(const Sequence& first, SequenceId fork) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees the sequence's places.
  void Remove(SequenceId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Call after the last callback of a sequence has returned.
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
  // Maximum rows of a step in which sequences decode.
  uint32_t step_rows() const {
    return options_.step_tokens > 0 ? options_.step_tokens : layout_.chunk_tokens;
  }

  const EngineOptions& options_;
  const KvLayout& layout_;
  const ModelRunner* const model_;
  EngineCounters* const counters_;

  mutable absl::Mutex mu_;
  absl::CondVar work_arrived_;  // signalled when the engine's thread has work
  PrefixCache* cache_ ABSL_GUARDED_BY(mu_) = nullptr;
  Scheduler scheduler_ ABSL_GUARDED_BY(mu_);
  std::map<SequenceId, SequencePtr> sequences_ ABSL_GUARDED_BY(mu_);
  // Dropped sequences, which the next round ends.
  std::set<SequenceId> dropped_ids_ ABSL_GUARDED_BY(mu_);
  // Number of sequences whose last callback has not returned.
  uint32_t active_ ABSL_GUARDED_BY(mu_) = 0;
  SequenceId next_id_ ABSL_GUARDED_BY(mu_) = 1;
  // Whether places or memory may have become free.
  bool retries_admission_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool out_of_time_ ABSL_GUARDED_BY(mu_) = false;  // whether the drain's deadline has passed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ROUND_PLANNER_H_
