// ModelRunner: the engine's interface to a model: the forward pass, the memory of sequences, and
// everything that determines the bits.
//
// Thread safety: non-const methods by the engine's thread; const methods by any thread.
// Ownership: a SequenceKv must not outlive its runner. Objects that share its blocks may.
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

namespace hearth {

// One sequence's part of a step. `logits`, if not null, receives the logits of its last `wanted`
// tokens, [wanted, vocab_size].
struct StepPart {
  SequenceKv* kv = nullptr;
  absl::Span<const int32_t> tokens;
  std::vector<float>* logits = nullptr;
  uint32_t wanted = 1;  // > 1 only if the model batches
};

// A loaded low-rank adapter.
struct ModelAdapter {
  std::string name;
  Digest digest{};  // identifies its weights
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
  // Form of the matrices: "stored" (the checkpoint's own bits), "int8", or a dtype.
  virtual std::string weights() const = 0;
  virtual std::string arithmetic() const = 0;  // type of the products: "int8/32/1", or a dtype
  virtual const std::vector<std::string>& notes() const = 0;
  // How keys and values are kept by default.
  virtual KvChoice kv() const { return {}; }
  // Maximum tokens of one sequence in a step in which nothing decodes; at least a chunk.
  virtual uint32_t step_tokens(const KvLayout& layout) const { return layout.chunk_tokens; }

  struct KvBytes {
    uint64_t budget = 0, used = 0;  // budget 0: unlimited
    uint64_t blocks_taken = 0;      // total so far
  };
  virtual KvBytes kv_bytes() const { return {}; }  // any thread
  // Returns the maximum bytes of the budget that a sequence still takes until it has `tokens`
  // tokens, in steps of at most a chunk. `kv`: its current state, or null if empty.
  virtual uint64_t MissingKvBytes(const SequenceKv* kv, int tokens,
                                  const KvChoice& choice) const = 0;
  // Returns whether the object's bytes count towards the budget.
  virtual bool CountsKvBytes(const KvObject& object) const {
    (void)object;
    return false;
  }
  // Calls `on_freed` once, from any thread, when someone other than the engine frees bytes of the
  // budget. Replaces an earlier function.
  virtual void WhenKvFreed(std::function<void()> on_freed) { (void)on_freed; }

  // Returns everything that determines the bits in addition to the model. May compute for a second.
  virtual absl::StatusOr<ComputeIdentity> Identify(const KvLayout& layout) = 0;

  // Returns an empty state for up to `tokens` tokens, kept as `choice` says. If the model batches,
  // MakeRoom and Restore take its memory; else NewKv does. kResourceExhausted: no memory.
  virtual absl::StatusOr<std::unique_ptr<SequenceKv>> NewKv(int tokens, const KvChoice& choice) = 0;
  // The adapters that sequences may use.
  virtual absl::Span<const ModelAdapter> adapters() const { return {}; }
  // Assigns the adapter `name` to a sequence; empty: none. REQUIRES: the adapter exists, and `kv`
  // is fresh from NewKv.
  virtual void UseAdapter(const std::string& name, SequenceKv* kv) {
    (void)name, (void)kv;
    assert(name.empty());
  }
  virtual void Release(std::unique_ptr<SequenceKv> kv) = 0;
  // Makes `fork` a copy of `kv`. Shared blocks are copied on write. REQUIRES: `fork` is empty.
  virtual void Fork(const SequenceKv& kv, SequenceKv* fork) = 0;
  // Sets `kv` to the state after `boundary` tokens. After an error its contents are undefined.
  // kResourceExhausted: the budget is exhausted.
  // REQUIRES: CheckAndSortObjects passed.
  virtual absl::Status Restore(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                               SequenceKv* kv) = 0;
  // Whether a step may have parts of several sequences: then a row's bits depend only on its own
  // sequence.
  virtual bool batches() const { return false; }
  // Takes the memory for a step of `tokens` tokens. kResourceExhausted: the budget is exhausted.
  virtual absl::Status MakeRoom(SequenceKv* kv, int tokens) {
    (void)kv, (void)tokens;
    return absl::OkStatus();
  }
  // Appends the tokens of each part. After an error all lengths are unchanged. kResourceExhausted:
  // out of memory; the step may be retried.
  // REQUIRES: each kv occurs once; one part unless batches().
  virtual absl::Status Step(absl::Span<const StepPart> parts) = 0;
  // Removes the tokens of the latest step after `length`. REQUIRES: batches(); their rows are not
  // shared.
  virtual void Forget(SequenceKv* kv, int length) {
    (void)kv, (void)length;
    assert(batches());
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_MODEL_RUNNER_H_
