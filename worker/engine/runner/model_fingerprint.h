// The identity of a loaded model's KV: its layout and its fingerprint.
//
// Pure functions, apart from ComputeCanary, which runs the model. Field names and their order are
// part of the contract between workers: changing one parts old stores from new workers.
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

// Everything that decides the last bit of a KV computed here, beside the model itself.
struct ComputeIdentity {
  std::string device_kind;
  std::string compute_version;
  std::string weights;         // class invariant: what the model's were made into; empty: nothing
  std::string arithmetic;      // class invariant: of its products; empty: float32 alone
  std::string adapter;         // any class: digest of a low-rank one, in hex; empty: none
  std::string cpu_capability;  // empty: another device computes
  int threads = 0;             // read with cpu_capability alone
  Digest canary{};
};

// `identity` is not read in the portable class; in the invariant one compute_version, weights and
// arithmetic alone are.
absl::StatusOr<Fingerprint> FingerprintOf(const ModelConfig& config, const KvLayout& layout,
                                          const Digest& weights_digest,
                                          const ComputeIdentity& identity);

// Digest of KV that this worker computes for fixed tokens: two machines that differ in a bit of it
// share nothing. It takes every kind of step there is: a whole chunk, a few rows and one row, each
// at the prompt's beginning and again behind more than 4,096 keys, where a window has slid.
//
// Only 2C + 16 tokens go through the model, as much as a canary of 2C + 7 tokens without the far
// end: the rows up to there are those of the first steps, over and over, put in as a restore puts
// them. Kernels are chosen by shapes, and sums are ordered by them, so these rows do as well as
// computed ones. A context too short for the far end has the first steps alone.
// `kv` must be empty and hold CanaryTokens(); it is used up.
absl::StatusOr<Digest> ComputeCanary(const Gemma& gemma, const KvLayout& layout, KvCache* kv);
// The last position that the canary takes, plus one.
int CanaryTokens(const ModelConfig& config, uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_MODEL_FINGERPRINT_H_
