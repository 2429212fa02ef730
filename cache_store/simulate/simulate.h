// The simulator: replays a trace against a retention policy, without bytes, to tell which hit rate
// a cache of some size would have had.
//
// Pure functions, thread safe. A second or two for 10,000 requests and one size.
#ifndef HEARTH_CACHE_STORE_SIMULATE_SIMULATE_H_
#define HEARTH_CACHE_STORE_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cache_store/retention/retention.h"
#include "cache_store/simulate/trace.h"

namespace hearth {

// The policies that a store can run, and the offline optimum, which knows the future.
enum class SimulatedPolicy { kDefault, kLru, kOptimum };

// "default", "lru", "optimum".
const char* PolicyName(SimulatedPolicy policy);
absl::StatusOr<SimulatedPolicy> ParsePolicy(const std::string& name);

// The shape of a model, from which the bytes of restore points follow.
struct ModelShape {
  const char* name = "";
  uint32_t global_layers = 0;
  uint32_t local_layers = 0;
  uint32_t window = 0;    // tokens, the current one included
  uint32_t kv_width = 0;  // values of a token's key in one layer, all KV heads together

  // Of a token, keys and values of all layers, as workers on CPUs keep them: float32.
  uint64_t TokenBytes() const {
    return uint64_t{2} * sizeof(float) * kv_width * (global_layers + local_layers);
  }
};
// "270m", "1b", "4b", "12b", "27b": Gemma 3 as published.
absl::StatusOr<ModelShape> ParseModelShape(const std::string& name);

// Without a model: blocks of all layers, each kept or not by itself. `capacity` is a share of the
// trace's unique blocks; the result is the share of all prompts' blocks that were found, counted
// from a prompt's start to the first gap.
//
// With a model: restore points as the store keeps them, global layers of the whole prefix and local
// layers of the tail. Kept are a prompt's end, the block before it, and where a second prompt
// branched off. `capacity` is a share of the bytes of all full blocks, stored dense; the result is
// the share of all tokens that were restored. kOptimum is then Belady's rule on restore points: a
// very good choice with the future known, but not proven the best.
double HitRate(const Trace& trace, const std::optional<ModelShape>& model, SimulatedPolicy policy,
               double capacity);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_SIMULATE_H_
