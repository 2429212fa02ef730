// KvMemory: allocates memory for the sequences' keys and values (KV), within the model's byte
// budget.
//
// A sequence allocates blocks when a step needs them. If no block is free, KvMemory frees memory in
// this order: evict a restore point from the worker's pool; stop the running audit; drop the oldest
// waiting publish; release restore points that younger sequences hold while they wait for a cache
// lookup; preempt a younger sequence. Preemption moves the sequence's whole chunks to the pool and
// the sequence to the queue. After it is admitted again, its tokens are restored or recomputed. A
// sequence is never preempted for a younger one, so every request ends. If the model does not batch
// (classes exact and portable), a sequence gets all its memory at admission, and no sequence is
// preempted.
//
// If a device has too little memory for a request that runs alone, or would refuse its allocation,
// the request is offloaded instead of refused (KvStrategy::kOffloaded); its bits stay the same.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive KvMemory.
#ifndef HEARTH_WORKER_ENGINE_KV_MEMORY_H_
#define HEARTH_WORKER_ENGINE_KV_MEMORY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

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
           EngineAudit* audit, BeamDriver* beams, EngineCounters* counters,
           std::function<void(const std::string&)> on_warning)
      : layout_(layout),
        model_(model),
        planner_(planner),
        keeper_(keeper),
        audit_(audit),
        beams_(beams),
        counters_(counters),
        on_warning_(std::move(on_warning)) {}

  // Looks the sequence's prefix up in the pool and stores the result in `pooled`, if the request
  // reads prefixes. Called before the cache lookup and again after it.
  void LookUpPool(Sequence* sequence);
  // Looks the prefix up in the pool. Creates the sequence's KV if memory suffices for its prompt
  // and one chunk of its answer. Returns false if memory does not suffice now. kInvalidArgument:
  // the request needs more memory than the whole budget.
  absl::StatusOr<bool> TryAdmit(Sequence* sequence);
  // Calls `use`. While `use` returns kResourceExhausted, frees memory in the order above and calls
  // `use` again. Returns kResourceExhausted if nothing is left to free. If the sequence can be
  // offloaded instead of an error, offloads it and continues.
  absl::Status RetryFreeingMemory(const Sequence& sequence, absl::FunctionRef<absl::Status()> use);
  // Allocates the memory for a step's part. May reduce the part's tokens, or preempt its sequence.
  // kResourceExhausted: the sequence alone needs more than the whole budget. Other errors: the
  // machine is out of memory.
  absl::Status MakeRoom(SequencePart* part);

 private:
  // Evicts a restore point from the pool, or stops the running audit if none can be evicted.
  // Returns false if it freed nothing.
  bool FreeUnused();
  // Makes younger sequences that wait for a cache lookup release the restore points that they found
  // in the pool, so that the pool can evict these. Returns false if no sequence held any.
  bool ReleasePooled(const Sequence& sequence);
  // Returns whether the request could be offloaded: it runs on a device, and its KV is not
  // quantized.
  bool MayOffload(const Sequence& sequence) const {
    return model_->may_offload() && !sequence.request.kv.quantization.is_on();
  }
  void OffloadAboveBudget(const Sequence& sequence, uint32_t end);
  // Offloads a running sequence. Returns false if that is impossible or was done before.
  bool Offload(const Sequence& sequence);
  void NoteOffloaded(const Sequence& sequence);
  absl::StatusOr<bool> MakeKv(Sequence* sequence, bool can_wait);
  uint64_t NeededBytes(const Sequence& sequence, uint32_t end) const;
  void Preempt(SequencePtr sequence);

  const KvLayout& layout_;
  ModelRunner* const model_;
  RoundPlanner* const planner_;
  PrefixKeeper* const keeper_;
  EngineAudit* const audit_;
  BeamDriver* const beams_;
  EngineCounters* const counters_;
  const std::function<void(const std::string&)> on_warning_;  // may be null
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_KV_MEMORY_H_
