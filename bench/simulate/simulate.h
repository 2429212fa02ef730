// The simulator: replays a trace against a retention policy, without bytes, to tell which hit rate
// a cache of some size, or a fleet of stores, would have had.
//
// Functions are pure and thread safe, classes are not. A second or two for 10,000 requests and one
// size.
#ifndef HEARTH_BENCH_SIMULATE_SIMULATE_H_
#define HEARTH_BENCH_SIMULATE_SIMULATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hearth {

// Requests as Mooncake's traces record them, one JSON object a line: timestamp (ms), input_length
// (tokens), hash_ids (one for each block of 512 tokens, the last one may be shorter). Other fields
// are not read. Blocks are equal when their ids and all ids before them are. An error names file
// and line.
struct TraceRequest {
  int64_t at_ms = 0;
  uint32_t tokens = 0;
  std::vector<uint32_t> blocks;  // dense numbers from 0, in order of appearance
};

struct Trace {
  static constexpr uint32_t kBlockTokens = 512;
  // 50 million blocks: 200 MB here, and more than a day of a large service.
  static constexpr uint64_t kMaxBlocks = 50'000'000;
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  static constexpr size_t kMaxUnpackedBytes = size_t{4} << 30;

  std::vector<TraceRequest> requests;
  uint32_t unique_blocks = 0;
  uint32_t unique_full_blocks = 0;  // without those that only end a prompt, short of 512 tokens
};

// `name`: for error texts.
absl::StatusOr<Trace> ReadTrace(std::istream& in, const std::string& name);
// Decompresses an xz-compressed file, whatever its name.
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

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
// Gemma 3 as published: every sixth layer is global.
constexpr std::array<ModelShape, 5> kModelShapes = {{{"270m", 3, 15, 512, 256},
                                                     {"1b", 4, 22, 512, 256},
                                                     {"4b", 5, 29, 1024, 1024},
                                                     {"12b", 8, 40, 1024, 2048},
                                                     {"27b", 10, 52, 1024, 2048}}};

// Null `model`: blocks of all layers, each kept or not by itself. `capacity` is a share of the
// trace's unique blocks; the result is the share of all prompts' blocks that were found, counted
// from a prompt's start to the first gap.
//
// With a model: restore points as the store keeps them, global layers of the whole prefix and local
// layers of the tail. Kept are a prompt's end, the block before it, and where a second prompt
// branched off. `capacity` is a share of the bytes of all full blocks, stored dense; the result is
// the share of all tokens that were restored. kOptimum is then Belady's rule on restore points: a
// very good choice with the future known, but not proven the best.
double HitRate(const Trace& trace, const ModelShape* model, SimulatedPolicy policy,
               double capacity);

struct FleetShape {
  uint32_t nodes = 1;
  uint64_t node_blocks = 0;    // of each store's own memory
  uint64_t shared_blocks = 0;  // of the engine's
  uint32_t shards = 3;         // of the engine, each with its share
  uint32_t samples = 64;       // Redis' maxmemory-samples
  absl::Duration ttl = absl::Hours(24);
  bool affinity = false;  // a request goes to the store that its first block chooses, not to any
};

// Shares of all prompts' blocks, counted from a prompt's start to the first gap.
struct FleetRates {
  double found = 0;   // at all
  double shared = 0;  // in the engine alone
};

// Several stores that share one key-value engine.
// A store keeps blocks in memory of its own, by the policy that stores run, and the shared engine
// keeps them by the end of their lives, which the stores' own code chooses (shared_lives.h). A
// block is found where the store that is asked has it, or the engine; what the engine has comes to
// the store. What is not found is computed and published, and the store then writes what the engine
// lacks of the whole prompt.
class Fleet {
 public:
  explicit Fleet(const FleetShape& shape);
  ~Fleet();

  struct Found {
    size_t blocks = 0;  // of the prompt, up to the first gap
    size_t shared = 0;  // of these, in the engine alone
  };
  // By store `node`. Then the prompt was computed and published, and the engine has heard of it.
  Found Serve(const TraceRequest& request, size_t node);
  // In the engine. InfinitePast: it is not there.
  absl::Time EndOf(uint32_t block);

 private:
  struct Node;
  class EngineShard;
  EngineShard& ShardOf(uint32_t block);

  const absl::Duration ttl_;
  std::vector<Node> nodes_;
  std::vector<EngineShard> shards_;
};

FleetRates SimulateFleet(const Trace& trace, const FleetShape& shape);

struct Console;

// The program: parses the command line, runs, returns the exit code.
int RunSimulator(int argc, const char* const* argv, Console& outside);

}  // namespace hearth

#endif  // HEARTH_BENCH_SIMULATE_SIMULATE_H_
