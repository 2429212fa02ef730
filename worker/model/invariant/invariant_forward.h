// InvariantForward: the forward pass of the class invariant over the rows of a step, as loops of
// one list that runs on the threads: the whole of it, or its pieces for the self-test.
//
// Thread safety: none; one step at a time. Keeps its memory for the next step.
// Ownership: weights and threads must outlive it. Private to hearth_invariant_model.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_FORWARD_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_FORWARD_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "worker/kernels/layer.h"
#include "worker/kernels/rope_table.h"
#include "worker/model/invariant/invariant_step.h"
#include "worker/model/invariant/invariant_weights.h"
#include "worker/model/thread_pool.h"

namespace hearth {

class InvariantForward {
 public:
  using Parts = absl::Span<const InvariantPart>;

  // `chunk`: C. `seams`: empty, but in tests.
  InvariantForward(const InvariantWeights* weights, int64_t chunk, ThreadPool* pool,
                   LayerSeams seams);

  // Appends the parts' tokens and gives their logits. REQUIRES: PrepareParts took the parts.
  void Run(Parts parts);

  // The pieces. Nothing that a list is given moves or grows until it has run.
  void Begin(Parts parts);
  void AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list);
  // `number`: of the layer in the layout of the parts' Kv.
  void AddWholeLayer(const InvariantLayer& layer, int number, const std::vector<float>& next_norm,
                     KernelPhases* list);
  // The logits of rows that the final norm has been through.
  void AddHead(const ConstRows& normed, absl::Span<float* const> to, KernelPhases* list);
  void RunList(KernelPhases* list) { list->RunOn(pool_); }

  // Called with the results of each operation, from the next list on; null: none.
  using Witness = std::function<void(const char* operation, const Rows& values, int64_t columns)>;
  void SetWitness(Witness witness) { seams_.witness = std::move(witness); }
  // The memory that the step's rows go through.
  const LayerRows& rows() const { return step_.shared(); }
  LayerWeights WeightsOf(const InvariantLayer& layer) const;
  const RopeTable& RopeOf(const InvariantLayer& layer) const {
    return layer.local ? local_rope_ : global_rope_;
  }

 private:
  void AddLastLayer(const InvariantLayer& layer, int number, KernelPhases* list);
  float epsilon() const { return static_cast<float>(config_.rms_norm_eps); }

  const InvariantWeights* const weights_;
  const ModelConfig& config_;
  const int64_t chunk_;
  ThreadPool* const pool_;
  LayerSeams seams_;
  RopeTable global_rope_, local_rope_;
  InvariantStep step_;
  std::vector<float*> logits_;  // of each wanted row
  Workspace workspace_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_FORWARD_H_
