// KvMemory: gives sequences memory for their keys and values, within the model's budget.
//
// A sequence takes blocks when a step needs them. If there are none, an entry of the pool is
// evicted, else an audit or a publish that waits is dropped, else what younger sequences that wait
// for a cache found in the pool is given back to it, else a younger sequence is preempted:
// its whole chunks go to the pool, it waits in the queue, and its text is restored or computed
// again. The oldest sequence is never preempted for another, so that every request ends. Where a
// sequence's bits depend on its steps (exact, portable), all of its memory is taken before it
// begins, and nothing is preempted.
//
// Thread safety: the engine's thread alone. Ownership: all its arguments must outlive it.
#ifndef HEARTH_WORKER_ENGINE_KV_MEMORY_H_
#define HEARTH_WORKER_ENGINE_KV_MEMORY_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/engine/beam_driver.h"
#include "worker/engine/engine_audit.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/round_planner.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class KvMemory {
 public:
  KvMemory(const KvLayout& layout, ModelRunner* model, RoundPlanner* planner, PrefixKeeper* keeper,
           EngineAudit* audit, BeamDriver* beams, EngineCounters* counters)
      : layout_(layout),
        model_(model),
        planner_(planner),
        keeper_(keeper),
        audit_(audit),
        beams_(beams),
        counters_(counters) {}

  // Sets `pooled` of a sequence that reads, before its lookup in the cache and again after it.
  void LookUpPool(Sequence* sequence);
  // Looks the sequence's prefix up in the pool, and makes its KV if there is room for its text and
  // for a chunk of its answer. False: there is none now. kInvalidArgument: there will never be.
  absl::StatusOr<bool> TryAdmit(Sequence* sequence);
  // Calls `use`, which takes memory for the sequence, until it has enough. kResourceExhausted:
  // others have none to give.
  absl::Status RetryFreeingMemory(const Sequence& sequence, absl::FunctionRef<absl::Status()> use);
  // Takes the memory of a step's part, which may get fewer tokens, or preempts its sequence.
  // kResourceExhausted: its text has outgrown all of the budget. Other errors say that the machine
  // has no memory.
  absl::Status MakeRoom(SequencePart* part);

 private:
  // Evicts an entry of the pool, else drops an audit; false: there is neither.
  bool FreeUnused();
  // Drops what younger sequences that wait for a cache have found in the pool, which may then evict
  // it. False: they have nothing.
  bool ReleasePooled(const Sequence& sequence);
  uint64_t NeededBytes(const Sequence& sequence, uint32_t end) const;
  void Preempt(SequencePtr sequence);

  const KvLayout& layout_;
  ModelRunner* const model_;
  RoundPlanner* const planner_;
  PrefixKeeper* const keeper_;
  EngineAudit* const audit_;
  BeamDriver* const beams_;
  EngineCounters* const counters_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_KV_MEMORY_H_
