// Gemma: a Gemma 3 text model in memory, and its forward pass.
//
// Thread safety: const methods may be called from any thread, one Step at a time per KvCache.
// Concurrent Steps of different caches run one after the other, because they share one set of
// compute threads.
// Ownership: owns the weights. A KvCache from NewKvCache must not outlive its Gemma.
// Exactness: the results of a Step are a function of the tokens, their positions and the step
// boundaries. Capacity, history, addresses and other sequences change no bit.
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
  // The choice follows from flags, never from a timing, so equal machines choose equally.
  std::string dtype = "auto";
  int threads = 0;  // 0: one for each physical core
  // Folder in which weight digests are cached across starts; empty: computed at every start.
  std::string digest_cache_dir;
};

class Gemma {
 public:
  // Reads config.json and the safetensors of `model_dir`. Errors name the file, tensor or field.
  static absl::StatusOr<std::unique_ptr<Gemma>> Load(const std::string& model_dir,
                                                     const GemmaOptions& options);
  ~Gemma();
  Gemma(const Gemma&) = delete;
  Gemma& operator=(const Gemma&) = delete;

  const ModelConfig& config() const;
  // Element type of keys, values and activations: float32 or bfloat16.
  KvDtype kv_dtype() const;
  // Bytes of one token of one layer, keys and values: 2 * kv_heads * head_dim * dtype bytes.
  int64_t kv_token_bytes() const;
  // "cpu" or "cuda".
  const std::string& device_kind() const;
  // Versions of libtorch and of the libraries whose kernels it runs.
  const std::string& compute_version() const;
  // Everything by which those libraries choose their kernels (compute_device.h); empty on a GPU.
  const std::string& cpu_capability() const;
  int threads() const;
  // SHA-256 tree digest of every tensor used (name, shape, dtype, bytes).
  const Digest& weights_digest() const;
  // Notes on the load for the log, one sentence each ("439 vision tensors skipped").
  const std::vector<std::string>& notes() const;

  // Returns an empty cache for up to `capacity_tokens` tokens. kResourceExhausted: there is no
  // memory now.
  absl::StatusOr<KvCache> NewKvCache(int capacity_tokens) const;
  // Returns the bytes of such a cache.
  uint64_t KvCacheBytes(int capacity_tokens) const;
  // Returns the device's free memory in bytes. REQUIRES: the device is not the CPU.
  absl::StatusOr<uint64_t> FreeDeviceBytes() const;

  // Runs `tokens` at positions [kv->length(), kv->length() + n) and appends their keys and values.
  // `logits`, if not null, receives [vocab_size] values for the last position. After an error the
  // cache's length is unchanged, and Reset or BeginRestore makes the cache usable. After
  // kResourceExhausted (the device has no memory) the step may be retried. REQUIRES: 1 <= n, and
  // the rows fit kv->capacity(). Token ids are checked.
  absl::Status Step(KvCache* kv, absl::Span<const int32_t> tokens,
                    std::vector<float>* logits) const;

 private:
  struct Rep;
  explicit Gemma(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_GEMMA_H_
