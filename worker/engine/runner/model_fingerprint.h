// The identity of a loaded model's KV: its layout and its fingerprint.
//
// Pure functions, except ComputeCanary, which runs the model. Field names and their order are a
// contract between workers: after a change, new workers do not match the entries of old stores.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_MODEL_FINGERPRINT_H_
#define HEARTH_WORKER_ENGINE_RUNNER_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/model/model_config.h"

namespace hearth {

class Gemma;
class KvCache;

// Everything that determines the bits of a KV computed here, in addition to the model.
struct ComputeIdentity {
  std::string device_kind;
  std::string compute_version;
  std::string weights;         // class invariant: form of the weights; empty: unconverted
  std::string arithmetic;      // class invariant: type of the products; empty: float32 only
  std::string adapter;         // any class: digest of the low-rank adapter, in hex; empty: none
  std::string cpu_capability;  // empty if a device computes
  int threads = 0;             // used only with cpu_capability
  Digest canary{};
};

// The portable class uses only the adapter of `identity`; the class invariant also uses its
// compute_version, weights and arithmetic.
absl::StatusOr<Fingerprint> FingerprintOf(const ModelConfig& config, const KvLayout& layout,
                                          const Digest& weights_digest,
                                          const ComputeIdentity& identity);

// Returns a digest of the KV that this worker computes for fixed tokens. Machines whose digests
// differ share nothing. The canary runs every kind of step (a whole chunk, a few rows, one row) at
// the prompt's beginning, and again after more than 4,096 keys, where the window has slid.
//
// Only 2C + 16 tokens go through the model. The rows between the two places are copies of the first
// steps' rows, restored repeatedly: kernels and the order of sums depend on shapes only, so copies
// work as well as computed rows. In a shorter context the second place is earlier, or omitted.
// REQUIRES: `kv` is empty and has capacity for CanaryTokens(). Its content is used up.
absl::StatusOr<Digest> ComputeCanary(const Gemma& gemma, const KvLayout& layout, KvCache* kv);
// Returns the canary's last position plus one.
int CanaryTokens(const ModelConfig& config, uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_MODEL_FINGERPRINT_H_
