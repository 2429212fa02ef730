// ModelTensors: the tensors of a checkpoint, found by name and checked against the config.
//
// Plain values that point into a Safetensors, which must outlive them.
// Hugging Face wrote Gemma 3's text part under three prefixes over time: "model.",
// "language_model.model." and "model.language_model."; names here are without them.
#ifndef HEARTH_WORKER_MODEL_WEIGHTS_H_
#define HEARTH_WORKER_MODEL_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/model_config.h"
#include "worker/model/safetensors.h"

namespace hearth {

struct LayerTensors {
  std::vector<TensorView*> All();

  TensorView input_norm, q, k, v, q_norm, k_norm, o, post_attention_norm;
  TensorView pre_feedforward_norm, gate, up, down, post_feedforward_norm;
};

struct ModelTensors {
  TensorView embedding;  // [vocab, hidden]
  TensorView final_norm;
  TensorView head;  // [vocab, hidden]; equals `embedding` when tied
  bool tied = false;
  std::vector<LayerTensors> layers;
  // All of the above, each once, by canonical name ("layers.0.self_attn.q_proj.weight").
  std::vector<TensorView> used;
  // Tensors left out on purpose, one sentence each.
  std::vector<std::string> notes;
};

// Names the first missing, extra or misshapen tensor.
absl::StatusOr<ModelTensors> FindTensors(const Safetensors& files, const ModelConfig& config);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_WEIGHTS_H_
