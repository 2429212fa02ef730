// Scheduler: which sequence takes the next step. Pure bookkeeping: no tensors, no clock, no
// threads.
//
// A sequence waits in a bounded queue, first come first served, until one of `max_running` places
// is free. With a place it is first idle (its prefix is being looked up), then prefills, then
// decodes. Prefilling sequences take turns, so that a short prompt is not stuck behind a long one;
// between two prefill steps every decoding sequence takes one step, so that running answers keep
// flowing.
//
// Thread safety: none; the engine guards it.
// Invariants:
//   1. A sequence is in the queue, or idle, prefilling or decoding; never in two of them.
//   2. idle + prefilling + decoding <= max_running.
//   3. Between two steps of one decoding sequence there is at most one prefill step.
#ifndef HEARTH_WORKER_SCHEDULER_H_
#define HEARTH_WORKER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

namespace hearth {

using SequenceId = uint64_t;

enum class StepKind { kPrefill, kDecode };

struct PlannedStep {
  SequenceId id = 0;
  StepKind kind = StepKind::kPrefill;
};

class Scheduler {
 public:
  // REQUIRES: max_running >= 1.
  Scheduler(uint32_t max_running, uint32_t max_queued);

  // False when the queue is full. Free places count as room: a queue of 0 still serves idle places.
  bool Enqueue(SequenceId id);
  // The one that has waited longest, where there is a place for it. Nobody overtakes it.
  std::optional<SequenceId> Candidate() const;
  // Gives the candidate its place; it is idle now. REQUIRES: `id` is the candidate.
  void Admit(SequenceId id);
  // REQUIRES: the sequence is idle.
  void StartPrefill(SequenceId id);
  // REQUIRES: the sequence is idle or prefilling.
  void StartDecode(SequenceId id);
  // Frees the sequence's place, wherever it is. Unknown ids are ignored.
  void Remove(SequenceId id);

  // The next step, or nullopt when nothing prefills or decodes. Each call counts as a step taken.
  std::optional<PlannedStep> Next();

  uint32_t running() const;
  uint32_t queued() const { return static_cast<uint32_t>(queue_.size()); }

 private:
  const uint32_t max_running_;
  const uint32_t max_queued_;
  std::deque<SequenceId> queue_;
  std::set<SequenceId> idle_;
  std::deque<SequenceId> prefilling_;  // front is next
  std::deque<SequenceId> decoding_;
  std::deque<SequenceId> round_;  // those of decoding_ that still have a step in this round
};

}  // namespace hearth

#endif  // HEARTH_WORKER_SCHEDULER_H_
