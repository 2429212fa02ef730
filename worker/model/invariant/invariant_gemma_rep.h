// InvariantGemma's inside: what a layer is, and the steps of the forward pass. Private to
// hearth_invariant_model.
//
// Thread safety and ownership: as InvariantGemma. invariant_gemma_load.cc fills a Rep,
// invariant_gemma.cc steps it.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_REP_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_REP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/kernels/layer.h"
#include "worker/kernels/rope_table.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/model/invariant/invariant_step.h"
#include "worker/model/safetensors.h"
#include "worker/model/thread_pool.h"
#include "worker/model/weights.h"

namespace hearth {

struct InvariantLayer {
  bool local = false;
  std::vector<float> input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm;
  std::vector<float> q_norm, k_norm;  // q_norm with the queries' scale
  PackedWeights qkv, out, gate, up, down;
};

// Row `row` of a matrix of the checkpoint, as floats.
void WidenRow(const TensorView& tensor, int64_t row, int64_t columns, float* to);

struct InvariantGemma::Rep {
  absl::Status LoadLayers(const ModelTensors& tensors);
  // Whether a step may be made, and then room for it in all parts' Kv, or in none.
  absl::Status PrepareStep(absl::Span<const Part> parts) const;
  absl::Status CheckPart(const Part& part) const;

  // The forward pass of parts that are prepared, and what it is made of: loops in a list.
  void Forward(absl::Span<const Part> parts);
  void BeginStep(absl::Span<const Part> parts);
  void AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list);
  // `number`: of the layer in the layout of the parts' Kv.
  void AddWholeLayer(const InvariantLayer& layer, int number, const std::vector<float>& next_norm,
                     KernelPhases* list);
  void AddLastLayer(const InvariantLayer& layer, int number, KernelPhases* list);
  // The logits of rows that the final norm has been through.
  void AddHead(const ConstRows& normed, absl::Span<float* const> logits, KernelPhases* list);

  float epsilon() const { return static_cast<float>(config.rms_norm_eps); }
  LayerWeights WeightsOf(const InvariantLayer& layer) const;
  RopeTable& RopeOf(const InvariantLayer& layer) { return layer.local ? local_rope : global_rope; }
  std::function<void(int64_t, KernelPart)> parallel() {
    return [this](int64_t parts, KernelPart body) {
      pool->Run(parts, [&](int64_t part, int) { body(part); });
    };
  }

  uint64_t number = 0;  // of this model in this process
  ModelConfig config;
  int64_t chunk = 0;
  WeightForm form = WeightForm::kStored;
  std::shared_ptr<const KvLayout> layout;
  std::unique_ptr<KvBlocks> kv_blocks;
  Digest weights_digest{};
  std::vector<std::string> notes;
  std::unique_ptr<Safetensors> files;
  TensorView embedding;
  std::vector<InvariantLayer> layers;
  std::vector<float> final_norm;
  PackedWeights head;
  RopeTable global_rope, local_rope;
  LayerSeams seams;  // empty, but in tests and in the self-test
  std::unique_ptr<ThreadPool> pool;
  // Of the step that is being made, and kept for the next.
  InvariantStep step;
  std::vector<float*> logits;  // of each wanted row
  Workspace workspace;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_GEMMA_REP_H_
