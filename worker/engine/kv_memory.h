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
// If the budget of a device is too small for a request that runs alone, the request is offloaded
// instead of refused (KvStrategy::kOffloaded); its bits stay the same.
//
// A device may refuse memory below the budget (kUnavailable), because other processes use it. Then
// KvMemory frees unused memory, offloads the request, or frees memory in the order above. Until the
// last request has ended or the device gives more, it admits requests only up to the bytes in use
// at the refusal.
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
  // Returns whether `status` is an error of too little memory: of the budget (kResourceExhausted)
  // or of the machine or device (kUnavailable).
  static bool IsLack(const absl::Status& status) {
    return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
  }
  // Calls `use`. While `use` returns an error of too little memory, frees memory in the order above
  // and calls `use` again. Returns the error if nothing is left to free. If the sequence can be
  // offloaded instead of an error, offloads it and continues.
  absl::Status RetryFreeingMemory(const Sequence& sequence, absl::FunctionRef<absl::Status()> use);
  // Allocates the memory for a step's part. May reduce the part's tokens, or preempt its sequence.
  // kResourceExhausted: the sequence alone needs more than the whole budget. kUnavailable: the
  // machine or device has no memory for the sequence alone.
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
  // `is_refused`: the device refused memory below the budget.
  bool Offload(const Sequence& sequence, bool is_refused);
  void NoteOffloaded(const Sequence& sequence, bool is_refused);
  // Notes that the device refused memory below the budget.
  void NoteRefusal() { refused_at_bytes_ = model_->kv_bytes().used; }
  absl::StatusOr<bool> MakeKv(Sequence* sequence, bool can_wait);
  uint64_t NeededBytes(const Sequence& sequence, uint32_t end) const;
  void Preempt(SequencePtr sequence, bool is_refused);

  const KvLayout& layout_;
  ModelRunner* const model_;
  RoundPlanner* const planner_;
  PrefixKeeper* const keeper_;
  EngineAudit* const audit_;
  BeamDriver* const beams_;
  EngineCounters* const counters_;
  const std::function<void(const std::string&)> on_warning_;  // may be null
  // KV bytes in use when the device last refused memory below the budget
  uint64_t refused_at_bytes_ = UINT64_MAX;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_KV_MEMORY_H_
