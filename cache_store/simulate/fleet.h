// The fleet's simulator: replays a trace against several stores that share one key-value engine, to
// tell which hit rate they would have had together.
//
// A store keeps blocks in memory of its own, by the policy that stores run, and the shared engine
// keeps them by the end of their lives (engine_shard.h), which the stores' own code chooses
// (shared_lives.h). A block is found where the store that is asked has it, or the engine; what the
// engine has comes to the store. What is not found is computed and published, and the store then
// writes what the engine lacks of the whole prompt.
//
// Thread safety: none of Fleet, all of SimulateFleet. Equal calls give equal results. Some seconds
// for 10,000 requests.
#ifndef HEARTH_CACHE_STORE_SIMULATE_FLEET_H_
#define HEARTH_CACHE_STORE_SIMULATE_FLEET_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/shared/shared_lives.h"
#include "cache_store/simulate/dense_cache.h"
#include "cache_store/simulate/engine_shard.h"
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

class Fleet {
 public:
  explicit Fleet(const FleetShape& shape);

  struct Found {
    size_t blocks = 0;  // of the prompt, up to the first gap
    size_t shared = 0;  // of these, in the engine alone
  };
  // By store `node`. Then the prompt was computed and published, and the engine has heard of it.
  Found Serve(const TraceRequest& request, size_t node);
  // In the engine. InfinitePast: it is not there.
  absl::Time EndOf(uint32_t block) const;

 private:
  struct Node {
    explicit Node(const FleetShape& shape)
        : memory(RetentionPolicy::kDefault, shape.node_blocks), lives(shape.ttl) {}
    DenseCache memory;
    SharedLives lives;
  };
  size_t ShardOf(uint32_t block) const { return block * 0x9E3779B97F4A7C15u % shards_.size(); }

  const absl::Duration ttl_;
  std::deque<Node> nodes_;  // none is moved
  std::deque<EngineShard> shards_;
};

FleetRates SimulateFleet(const Trace& trace, const FleetShape& shape);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_FLEET_H_
