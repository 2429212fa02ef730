// InvariantWeights: the weights of a checkpoint, in the form in which the exactness class invariant
// computes: matrices packed for the kernels, norms widened to float32. If the embedding is tied, it
// uses the panels of the output matrix; otherwise it keeps its stored form.
//
// Thread safety: const methods may be called from any thread. Ownership: owns all that it returns.
// After Load it reads no file.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_WEIGHTS_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/fingerprint.h"  // for Digest
#include "worker/kernels/packed_weights.h"
#include "worker/model/model_config.h"
#include "worker/model/tensor_files.h"
#include "worker/model/thread_pool.h"
#include "worker/model/weights.h"

namespace hearth {

class WeightsReader;

struct InvariantLayer {
  bool local = false;
  std::vector<float> input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm;
  std::vector<float> q_norm, k_norm;  // q_norm is multiplied by the attention's query scale
  std::vector<PackedWeights> qkv;     // one matrix; several if q, k and v have different types
  PackedWeights out, gate, up, down;
};

class InvariantWeights {
 public:
  // `config`: the config of the same model. `arithmetic`: kInt8 is the arithmetic of quantized
  // matrices, and other matrices use float32; kBFloat16 needs bfloat16 matrices only, else the
  // error is kInvalidArgument. `digest_cache_dir`: folder in which weight digests are cached;
  // empty: none. Error messages name the file or tensor.
  static absl::StatusOr<std::unique_ptr<InvariantWeights>> Load(const std::string& model_dir,
                                                                ModelConfig config, WeightForm form,
                                                                Arithmetic arithmetic,
                                                                const std::string& digest_cache_dir,
                                                                ThreadPool* pool);

  const ModelConfig& config() const { return config_; }
  WeightForm form() const { return form_; }
  // Returns kInt8 if any matrix is multiplied in integers, kBFloat16 if all are in bfloat16.
  Arithmetic arithmetic() const { return used_; }
  // Returns the SHA-256 tree digest of all tensors that the model uses (name, shape, dtype, bytes).
  const Digest& digest() const { return digest_; }
  // Returns notes about loading for the log, one sentence each.
  const std::vector<std::string>& notes() const { return notes_; }

  const InvariantLayer& layer(int number) const { return layers_[static_cast<size_t>(number)]; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  // output matrix; also the embedding if is_tied()
  const PackedWeights& head() const { return head_; }
  bool is_tied() const { return embedding_.data == nullptr; }
  // Frees the matrices of the layers, the output matrix and the embedding.
  void FreeMatrices();
  // Writes the embedding of `token` as floats, before scaling: [hidden_size].
  void WidenEmbedding(int32_t token, float* to) const;

 private:
  InvariantWeights(ModelConfig config, WeightForm form, Arithmetic arithmetic)
      : config_(std::move(config)), form_(form), arithmetic_(arithmetic) {}
  absl::Status CheckTypes(const ModelTensors& tensors) const;
  absl::Status Pack(const ModelTensors& tensors, WeightsReader* reader, ThreadPool* pool);
  std::vector<PackedWeights> PackStacked(const std::vector<TensorView>& parts, ParallelFor parallel,
                                         KernelArena* arena);

  const ModelConfig config_;
  const WeightForm form_;
  const Arithmetic arithmetic_;
  Arithmetic used_ = Arithmetic::kFloat32;
  Digest digest_{};
  std::vector<std::string> notes_;
  TensorView embedding_;  // stored form; has no data if tied
  std::vector<InvariantLayer> layers_;
  std::vector<float> final_norm_;
  PackedWeights head_;
};

// Returns the bytes of memory that the weights will need; reads only the headers of the files.
absl::StatusOr<uint64_t> InvariantWeightBytes(const std::string& model_dir, WeightForm form);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_WEIGHTS_H_
