// The fleet's simulator: replays a trace against several stores that share one key-value engine, to
// tell which hit rate they would have had together.
//
// A store keeps blocks in memory of its own, by the policy that stores run, and the shared engine
// keeps them by the end of their lives (shared_life.h) as Redis' volatile-ttl does: of a few values
// taken at random, and the best candidates of before, the one that would end first goes. A block is
// found where the store that is asked has it, or the engine; what the engine has comes to the
// store.
//
// Pure functions, thread safe; equal calls give equal results. Some seconds for 10,000 requests.
#ifndef HEARTH_CACHE_STORE_SIMULATE_FLEET_H_
#define HEARTH_CACHE_STORE_SIMULATE_FLEET_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/simulate/trace.h"

namespace hearth {

// To which store a request goes: to any, or to the one that its first block chooses.
enum class Routing { kRandom, kAffinity };
// "random", "affinity".
absl::StatusOr<Routing> ParseRouting(const std::string& name);

struct FleetShape {
  uint32_t nodes = 1;
  uint64_t node_blocks = 0;    // of each store's own memory
  uint64_t shared_blocks = 0;  // of the engine's
  uint32_t shards = 3;         // of the engine, each with its share
  uint32_t samples = 64;       // Redis' maxmemory-samples
  absl::Duration ttl = absl::Hours(24);
  Routing routing = Routing::kRandom;
};

// Shares of all prompts' blocks, counted from a prompt's start to the first gap.
struct FleetRates {
  double found = 0;   // at all
  double shared = 0;  // in the engine alone
};

FleetRates SimulateFleet(const Trace& trace, const FleetShape& shape);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_FLEET_H_
