// The fingerprint of a loaded model: identifies the bits of the KV that it computes.
//
// Pure functions, except ComputeCanary, which runs the model. The names and order of the fields
// must not change: workers with different fields cannot use each other's stored entries.
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

// Properties of this process that determine the bits of the KV, in addition to the model.
struct ComputeIdentity {
  std::string device_kind;
  std::string compute_version;
  std::string weights;     // class invariant: number format of the weights; empty: unconverted
  std::string arithmetic;  // class invariant: arithmetic of matrix products; empty: float32 only
  std::string adapter;     // all classes: digest of the low-rank adapter in hex; empty: no adapter
  std::string cpu_capability;  // empty if a device computes
  int threads = 0;             // relevant only if cpu_capability is set
  Digest canary{};
};

// In class portable, of `identity` only the adapter is part of the fingerprint. In class invariant,
// also compute_version, weights and arithmetic. In class exact, all fields except weights and
// arithmetic.
absl::StatusOr<Fingerprint> FingerprintOf(const ModelConfig& config, const KvLayout& layout,
                                          const Digest& weights_digest,
                                          const ComputeIdentity& identity);

// Returns the canary: a digest of the KV that this machine computes for fixed tokens. Machines with
// different digests share no KV in class exact. The canary runs every kind of step (a whole chunk,
// a few rows, one row) twice: at the beginning of the prompt, and after more than 4,096 keys, where
// the window has moved on.
//
// Only 2C + 16 tokens (C: chunk_tokens) go through the model. The rows between the two runs are
// repeated copies of the first run's rows: kernels and the order of sums depend on shapes only, so
// copied rows work as well as computed rows. If the context is too short, the second run is
// earlier, or omitted.
// REQUIRES: `kv` is empty and has capacity for CanaryTokens(). Its content is overwritten.
absl::StatusOr<Digest> ComputeCanary(const Gemma& gemma, const KvLayout& layout, KvCache* kv);
// Returns the number of KV positions that the canary needs.
int CanaryTokens(const ModelConfig& config, uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_MODEL_FINGERPRINT_H_
