// LoraAdapter: a LoRA adapter in PEFT's format (adapter_config.json and adapter_model.safetensors),
// packed for the kernels.
//
// Supported: LoRA on the seven projections of a layer, with the scale lora_alpha / r, or lora_alpha
// / sqrt(r) if use_rslora is set. All other adapters are refused; the error names the field.
//
// Thread safety: immutable. Ownership: owns its weights; its files are closed after Load.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_LORA_ADAPTER_H_
#define HEARTH_WORKER_MODEL_INVARIANT_LORA_ADAPTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/digest.h"
#include "worker/kernels/layer.h"
#include "worker/model/model_config.h"
#include "worker/model/thread_pool.h"

namespace hearth {

class LoraAdapter {
 public:
  // Loads an adapter. Error messages (kInvalidArgument, kNotFound) name the file, and the field or
  // tensor.
  static absl::StatusOr<std::shared_ptr<const LoraAdapter>> Load(const std::string& dir,
                                                                 const ModelConfig& config,
                                                                 ThreadPool* pool);

  absl::Span<const AdapterLayer> layers() const { return layers_; }
  // REQUIRES: 0 <= number < num_layers of the model.
  const AdapterLayer& layer(int number) const;
  // Returns the SHA-256 of all tensors (name, shape, dtype, bytes) and of the scale.
  const Digest& digest() const { return digest_; }
  int rank() const { return rank_; }
  uint64_t bytes() const { return bytes_; }  // bytes of the packed weights

 private:
  LoraAdapter() = default;

  std::vector<AdapterLayer> layers_;
  Digest digest_{};
  int rank_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_LORA_ADAPTER_H_
