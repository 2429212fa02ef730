// ModelRunner: the engine's interface to a model: the forward pass, the memory of sequences, and
// the properties that determine the bits of KV.
//
// Thread safety: non-const methods by the engine's thread only; const methods by any thread.
// Ownership: a SequenceKv must not outlive its runner. Objects that share its blocks may outlive
// the runner.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_MODEL_RUNNER_H_
#define HEARTH_WORKER_ENGINE_RUNNER_MODEL_RUNNER_H_

#include <algorithm>
#include <cassert>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/engine/runner/kv_snapshot.h"
#include "worker/engine/runner/model_fingerprint.h"
#include "worker/model/kv_choice.h"
#include "worker/model/model_config.h"
#include "worker/model/sequence_kv.h"
#include "worker/model/step_logits.h"

namespace hearth {

// The tokens of one sequence in a step. `logits`, if not null, receives the logits of the last
// `wanted` tokens, [wanted, vocab_size], valid until the sequence's next step.
struct StepPart {
  SequenceKv* kv = nullptr;
  absl::Span<const int32_t> tokens;
  StepLogits* logits = nullptr;
  // Number of last tokens whose logits are returned; > 1 only if the model batches.
  uint32_t wanted = 1;
  bool greedy = false;  // the token of each greatest logit suffices: a device returns no logits
};

// A loaded low-rank adapter.
struct ModelAdapter {
  std::string name;
  Digest digest{};  // digest of the adapter's weights
  int rank = 0;
  uint64_t bytes = 0;
};

// Returns the index of the adapter with this name, or nullopt.
inline std::optional<size_t> AdapterNumber(absl::Span<const ModelAdapter> adapters,
                                           absl::string_view name) {
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].name == name) return i;
  }
  return std::nullopt;
}

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const ModelConfig& config() const = 0;
  virtual Exactness exactness() const = 0;
  virtual KvDtype kv_dtype() const = 0;
  virtual const std::string& device_kind() const = 0;
  virtual const Digest& weights_digest() const = 0;
  // Number format of the matrices: "stored" (as in the checkpoint), "int8", or a dtype.
  virtual std::string weights() const = 0;
  // Arithmetic of matrix products: "int8/32/1", "bf16/16/2", or a dtype.
  virtual std::string arithmetic() const = 0;
  virtual const std::vector<std::string>& notes() const = 0;
  // Default KV options of requests.
  virtual KvChoice kv() const { return {}; }
  // Maximum prompt tokens of a step in which no sequence decodes; at least a chunk.
  virtual uint32_t step_tokens(const KvLayout& layout) const { return layout.chunk_tokens; }

  struct KvBytes {
    uint64_t budget = 0, used = 0;  // budget 0: unlimited
    uint64_t blocks_taken = 0;      // blocks allocated since the start
  };
  virtual KvBytes kv_bytes() const { return {}; }  // may be called from any thread
  // Returns the maximum bytes of the budget that a sequence still needs to reach `tokens` tokens,
  // in steps of at most a chunk. `kv`: the sequence's current KV, or null if it has none yet.
  virtual uint64_t MissingKvBytes(const SequenceKv* kv, int tokens,
                                  const KvChoice& choice) const = 0;
  // Returns whether the object's memory is part of the KV budget.
  virtual bool CountsKvBytes(const KvObject& object) const {
    (void)object;
    return false;
  }
  // Calls `on_freed` once, from any thread, when something other than the engine, such as a
  // publish, frees memory of the budget. Replaces the function of an earlier call.
  virtual void WhenKvFreed(std::function<void()> on_freed) { (void)on_freed; }

  // Returns the properties of this process that determine the bits of KV. May compute for a second.
  virtual absl::StatusOr<ComputeIdentity> Identify(const KvLayout& layout) = 0;

  // Returns an empty KV for up to `tokens` tokens, with the options `choice`. If the model batches,
  // MakeRoom and Restore allocate its memory, else NewKv does. kResourceExhausted: no memory.
  virtual absl::StatusOr<std::unique_ptr<SequenceKv>> NewKv(int tokens, const KvChoice& choice) = 0;
  // Returns whether sequences may be offloaded (KvStrategy::kOffloaded).
  virtual bool may_offload() const { return false; }
  // Makes `kv` an offloaded sequence from its next step or restore on. Returns false if it already
  // is one. REQUIRES: may_offload(); KV quantization is off.
  virtual bool Offload(SequenceKv* kv) {
    (void)kv;
    return false;
  }
  // The adapters that sequences may use.
  virtual absl::Span<const ModelAdapter> adapters() const { return {}; }
  // Makes a sequence use the adapter `name`; empty: none. REQUIRES: the adapter exists; `kv` is
  // unused since NewKv.
  virtual void UseAdapter(const std::string& name, SequenceKv* kv) {
    (void)name, (void)kv;
    assert(name.empty());
  }
  virtual void Release(std::unique_ptr<SequenceKv> kv) = 0;
  // Makes `fork` a copy of `kv`. Shared blocks are copied when written. REQUIRES: `fork` is empty.
  virtual void Fork(const SequenceKv& kv, SequenceKv* fork) = 0;
  // Sets `kv` to the state after `boundary` tokens. After an error the contents of `kv` are
  // undefined. kResourceExhausted: the budget is exhausted. kAborted: CheckLent failed.
  // REQUIRES: CheckAndSortObjects accepted `objects`.
  virtual absl::Status Restore(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                               SequenceKv* kv) = 0;
  // Returns whether a step may have parts of several sequences. If so, the bits of a row depend
  // only on the row's sequence.
  virtual bool batches() const { return false; }
  // Allocates the memory for a step of `tokens` tokens. kResourceExhausted: the budget is
  // exhausted.
  virtual absl::Status MakeRoom(SequenceKv* kv, int tokens) {
    (void)kv, (void)tokens;
    return absl::OkStatus();
  }
  // Appends each part's tokens to its KV. After an error all lengths are unchanged.
  // kResourceExhausted: out of memory; the step may be retried.
  // REQUIRES: each `kv` occurs once; there is one part unless batches().
  virtual absl::Status Step(absl::Span<const StepPart> parts) = 0;
  // Returns whether Start may return before the step is computed (a device computes).
  virtual bool is_asynchronous() const { return false; }
  // The two halves of Step. Between Start and Finish only const methods may be called, and the
  // sequences of the step must not be released. Finish is called only if Start succeeded.
  virtual absl::Status Start(absl::Span<const StepPart> parts) { return Step(parts); }
  virtual absl::Status Finish() { return absl::OkStatus(); }
  // Returns the first error of the device, after which all steps fail; "" if it has not failed.
  virtual std::string device_failure() const { return ""; }
  // Removes the tokens from index `length` on, which the latest step appended. REQUIRES: batches();
  // the blocks of these tokens are not shared.
  virtual void Forget(SequenceKv* kv, int length) {
    (void)kv, (void)length;
    assert(batches());
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_MODEL_RUNNER_H_
