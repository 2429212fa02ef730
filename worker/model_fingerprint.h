// What a loaded model's KV is called: its layout and its fingerprint.
//
// Pure functions, apart from ComputeCanary, which runs the model. Field names and their order are
// part of the contract between workers: changing one parts old stores from new workers.
#ifndef HEARTH_WORKER_MODEL_FINGERPRINT_H_
#define HEARTH_WORKER_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/gemma.h"
#include "worker/model_config.h"

namespace hearth {

KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness);

// What decides the last bit of a KV computed here, beside the model itself: the exact class only.
struct ComputeIdentity {
  std::string device_kind;
  std::string compute_version;
  int threads = 0;
  Digest canary{};
};

// `identity` is not read in the portable class.
absl::StatusOr<Fingerprint> FingerprintOf(const ModelConfig& config, const KvLayout& layout,
                                          const Digest& weights_digest,
                                          const ComputeIdentity& identity);

// Digest of the KV of a fixed prompt of 2C+7 tokens (less where the context is shorter), computed
// on the canonical schedule: two machines that differ in a bit of it share nothing. `kv` must be
// empty and large enough; it is used up.
absl::StatusOr<Digest> ComputeCanary(const Gemma& gemma, const KvLayout& layout, KvCache* kv);
int CanaryTokens(const ModelConfig& config, uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_FINGERPRINT_H_
