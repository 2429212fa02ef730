// ModelRunner: the engine's interface to a model: its forward pass, the memory of its sequences,
// and everything in both that decides the bits.
//
// Thread safety: methods that are not const from the engine's thread; the rest from any thread.
// Ownership: a SequenceKv must not outlive the runner that made it; objects that share its blocks
// may.
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

// One sequence's part of a step: `logits`, if not null, becomes those of its last `wanted` tokens,
// one row after the other.
struct StepPart {
  SequenceKv* kv = nullptr;
  absl::Span<const int32_t> tokens;
  std::vector<float>* logits = nullptr;
  uint32_t wanted = 1;  // more only of a model that batches
};

// A low-rank adapter that was loaded beside the model.
struct ModelAdapter {
  std::string name;
  Digest digest{};  // of what it computes
  int rank = 0;
  uint64_t bytes = 0;
};

// The place of the one of this name; none: there is no such.
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
  // The form of the matrices: "stored", in the checkpoint's own bits, "int8", or a dtype.
  virtual std::string weights() const = 0;
  virtual std::string arithmetic() const = 0;  // of the products: "int8/32/1", or a dtype
  virtual const std::vector<std::string>& notes() const = 0;
  // How keys and values are kept of a request that does not say.
  virtual KvChoice kv() const { return {}; }
  // The most tokens of one sequence in a step while nothing decodes; at least a chunk.
  virtual uint32_t step_tokens(const KvLayout& layout) const { return layout.chunk_tokens; }

  struct KvBytes {
    uint64_t budget = 0, used = 0;  // budget 0: there is none
    uint64_t blocks_taken = 0;      // so far
  };
  virtual KvBytes kv_bytes() const { return {}; }  // any thread
  // The most bytes of the budget that a sequence still takes until it has `tokens`, in steps of at
  // most a chunk. `kv`: its state now; null: empty.
  virtual uint64_t MissingKvBytes(const SequenceKv* kv, int tokens,
                                  const KvChoice& choice) const = 0;
  // Whether the object's bytes count into the budget.
  virtual bool CountsKvBytes(const KvObject& object) const {
    (void)object;
    return false;
  }
  // Calls `on_freed` once, when bytes of the budget are freed by another holder than the engine:
  // from any thread. Replaces the function given before.
  virtual void WhenKvFreed(std::function<void()> on_freed) { (void)on_freed; }

  // Everything that decides the bits beside the model itself; may compute for a second.
  virtual absl::StatusOr<ComputeIdentity> Identify(const KvLayout& layout) = 0;

  // An empty state for up to `tokens`, kept as `choice` says. Where the model batches, its memory
  // is taken by MakeRoom and Restore; else now: kResourceExhausted where the machine has none.
  virtual absl::StatusOr<std::unique_ptr<SequenceKv>> NewKv(int tokens, const KvChoice& choice) = 0;
  // The adapters that a sequence may go through.
  virtual absl::Span<const ModelAdapter> adapters() const { return {}; }
  // All of the sequence goes through the adapter of this name; empty: none. REQUIRES: there is one,
  // and `kv` is as NewKv gave it.
  virtual void UseAdapter(const std::string& name, SequenceKv* kv) {
    (void)name, (void)kv;
    assert(name.empty());
  }
  virtual void Release(std::unique_ptr<SequenceKv> kv) = 0;
  // Makes `fork` the state of `kv`. Shared memory is copied before it is written. REQUIRES: `fork`
  // is empty.
  virtual void Fork(const SequenceKv& kv, SequenceKv* fork) = 0;
  // Makes `kv` the state after `boundary` tokens; after an error its contents are of no use.
  // kResourceExhausted: the budget has no room.
  // REQUIRES: CheckAndSortObjects passed.
  virtual absl::Status Restore(const KvLayout& layout, uint32_t boundary, const KvObjects& objects,
                               SequenceKv* kv) = 0;
  // Whether a step may have parts of several sequences: their bits depend on their own tokens.
  virtual bool batches() const { return false; }
  // Takes the memory of a step of `tokens`. kResourceExhausted: the budget has no room.
  virtual absl::Status MakeRoom(SequenceKv* kv, int tokens) {
    (void)kv, (void)tokens;
    return absl::OkStatus();
  }
  // Appends the tokens of each part. After an error all lengths are unchanged; kResourceExhausted:
  // there was no memory, and the step may be tried again.
  // REQUIRES: each kv once; one part, unless batches().
  virtual absl::Status Step(absl::Span<const StepPart> parts) = 0;
  // The tokens of the latest step behind `length` were never appended. REQUIRES: batches(); nobody
  // else was given their rows.
  virtual void Forget(SequenceKv* kv, int length) {
    (void)kv, (void)length;
    assert(batches());
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_MODEL_RUNNER_H_
