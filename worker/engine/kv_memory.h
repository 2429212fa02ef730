// KvMemory: gives sequences memory for their keys and values, within the model's budget.
//
// A sequence takes blocks when a step needs them. If none are free, KvMemory frees memory in this
// order: evict a pool entry; skip the running audit; drop the oldest waiting publish; release the
// pool entries that younger sequences found and hold while they wait for a cache; preempt a younger
// sequence. Preemption moves a sequence's whole chunks to the pool and the sequence to the queue;
// later its text is restored or computed again. The oldest sequence is never preempted for another,
// so every request ends. If the model does not batch (exact, portable), all memory of a sequence is
// taken at admission, and nothing is preempted.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive KvMemory.
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

  // Sets `pooled` if the sequence reads. Called before the cache lookup and again after it.
  void LookUpPool(Sequence* sequence);
  // Looks the prefix up in the pool, and creates the sequence's KV if memory suffices for its text
  // and one chunk of its answer. Returns false if memory is short now. kInvalidArgument: the
  // request never fits.
  absl::StatusOr<bool> TryAdmit(Sequence* sequence);
  // Calls `use` until it no longer runs out of memory, and frees memory of others between the
  // calls. kResourceExhausted: nothing is left to free.
  absl::Status RetryFreeingMemory(const Sequence& sequence, absl::FunctionRef<absl::Status()> use);
  // Takes the memory of a step's part. May reduce the part's tokens, or preempt its sequence.
  // kResourceExhausted: the text has outgrown the whole budget. Other errors: the machine has no
  // memory.
  absl::Status MakeRoom(SequencePart* part);

 private:
  // Evicts a pool entry, else skips the running audit. Returns false if there is neither.
  bool FreeUnused();
  // Releases the pool entries held by younger sequences that wait for a cache, so that the pool can
  // evict them. Returns false if there are none.
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
