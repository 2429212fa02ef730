// LoraAdapter: a low-rank adapter of a model, as PEFT saves one (adapter_config.json and
// adapter_model.safetensors), packed for the kernels.
//
// Of the adapters that PEFT knows: LORA of the seven projections of a layer, with lora_alpha / r
// or, where use_rslora says so, lora_alpha / sqrt(r) as scale. What would compute something else is
// refused by name.
//
// Thread safety: immutable. Owns its weights; the files are closed again.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_LORA_ADAPTER_H_
#define HEARTH_WORKER_MODEL_INVARIANT_LORA_ADAPTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/digest.h"
#include "worker/kernels/layer.h"
#include "worker/model/model_config.h"
#include "worker/model/thread_pool.h"

namespace hearth {

class LoraAdapter {
 public:
  // kInvalidArgument, kNotFound: names the file, and the field or tensor.
  static absl::StatusOr<std::shared_ptr<const LoraAdapter>> Load(const std::string& dir,
                                                                 const ModelConfig& config,
                                                                 ThreadPool* pool);

  // REQUIRES: of the model: 0 <= number < num_layers.
  const AdapterLayer& layer(int number) const;
  // SHA-256 of every tensor (name, shape, dtype, bytes) and of the scale.
  const Digest& digest() const { return digest_; }
  int rank() const { return rank_; }
  uint64_t bytes() const { return bytes_; }  // that the packed weights take

 private:
  LoraAdapter() = default;

  std::vector<AdapterLayer> layers_;
  Digest digest_{};
  int rank_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_LORA_ADAPTER_H_
