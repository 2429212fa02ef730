// Gemma: a Gemma 3 text model in memory, and its forward pass.
//
// Thread safety: const methods may be called from any thread, but only one Step at a time for each
// KvCache. Concurrent Steps of different caches run one after the other, because they use the same
// compute threads.
// Ownership: owns the weights. A KvCache from NewKvCache must not outlive its Gemma.
// Exactness: the results of a Step depend only on the tokens, their positions and the step
// boundaries. Cache capacity, earlier use of the cache, addresses and other sequences do not change
// any bit.
#ifndef HEARTH_WORKER_MODEL_TORCH_GEMMA_H_
#define HEARTH_WORKER_MODEL_TORCH_GEMMA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"  // for Digest
#include "proto/kv_layout.h"    // for KvDtype
#include "worker/model/model_config.h"
#include "worker/model/torch/kv_cache.h"

namespace hearth {

struct GemmaOptions {
  std::string device = "cpu";  // "cpu", "cuda" or "cuda:N"
  // "auto", "float32" or "bfloat16". auto: bfloat16 on CUDA and on a CPU with AMX, else float32.
  // The choice depends only on CPU flags, not on measured times, so equal machines make the same
  // choice.
  std::string dtype = "auto";
  int threads = 0;  // 0: one thread for each physical core
  // Folder in which weight digests are cached; empty: every start computes the digest.
  std::string digest_cache_dir;
};

class Gemma {
 public:
  // Loads config.json and the safetensors files of `model_dir`. Error messages name the file,
  // tensor or field.
  static absl::StatusOr<std::unique_ptr<Gemma>> Load(const std::string& model_dir,
                                                     const GemmaOptions& options);
  ~Gemma();
  Gemma(const Gemma&) = delete;
  Gemma& operator=(const Gemma&) = delete;

  const ModelConfig& config() const;
  // Returns the element type of keys, values and activations: float32 or bfloat16.
  KvDtype kv_dtype() const;
  // Returns the bytes of one token's keys and values in one layer: 2 * kv_heads * head_dim * dtype
  // bytes.
  int64_t kv_token_bytes() const;
  // Returns "cpu" or "cuda".
  const std::string& device_kind() const;
  // Returns the versions of libtorch and of the math libraries that it calls.
  const std::string& compute_version() const;
  // Returns the CPU features by which these libraries choose kernels (compute_device.h); empty on a
  // GPU.
  const std::string& cpu_capability() const;
  int threads() const;
  // Returns the SHA-256 tree digest of all tensors that the model uses (name, shape, dtype, bytes).
  const Digest& weights_digest() const;
  // Returns notes about loading for the log, one sentence each ("439 vision tensors are ignored").
  const std::vector<std::string>& notes() const;

  // Returns an empty cache for at most `capacity_tokens` tokens. kResourceExhausted: there is too
  // little memory now.
  absl::StatusOr<KvCache> NewKvCache(int capacity_tokens) const;
  // Returns the bytes of a cache with this capacity.
  uint64_t KvCacheBytes(int capacity_tokens) const;
  // Returns the device's free memory in bytes. REQUIRES: the device is not the CPU.
  absl::StatusOr<uint64_t> FreeDeviceBytes() const;

  // Computes `tokens` at positions [kv->length(), kv->length() + n) and appends their keys and
  // values. If `logits` is not null, it receives the [vocab_size] logits of the last position.
  // After an error kv->length() is unchanged; call Reset or BeginRestore before the next use. After
  // kResourceExhausted (too little device memory) the step may be retried. kInvalidArgument: a
  // token is not in the vocabulary, or the tokens exceed kv->capacity(). REQUIRES: n >= 1.
  absl::Status Step(KvCache* kv, absl::Span<const int32_t> tokens,
                    std::vector<float>* logits) const;

 private:
  struct Rep;
  explicit Gemma(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_GEMMA_H_
