// The simulator: replays a trace of requests against an eviction policy, without bytes of KV.
// Computes the hit rate that a cache of a given size, or a fleet of stores, would have had.
//
// Functions are pure and thread safe, classes are not. A simulation of 10,000 requests with one
// cache size takes a second or two.
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

// A request of a trace in the format of Mooncake's traces, one JSON object per line: timestamp
// (ms), input_length (tokens), hash_ids (one id per block of 512 tokens; the last block may be
// shorter). Other fields are ignored. Two blocks are equal if their ids and the ids of all blocks
// before them are equal. Errors name file and line.
struct TraceRequest {
  int64_t at_ms = 0;
  uint32_t tokens = 0;
  // numbers of the blocks, counted from 0 in the order in which they first appear in the trace
  std::vector<uint32_t> blocks;
};

struct Trace {
  static constexpr uint32_t kBlockTokens = 512;
  // Limit of blocks in a trace. 50 million blocks take 200 MB of memory, and are more than a large
  // service uses in a day.
  static constexpr uint64_t kMaxBlocks = 50'000'000;
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  static constexpr size_t kMaxUnpackedBytes = size_t{4} << 30;

  std::vector<TraceRequest> requests;
  uint32_t unique_blocks = 0;
  uint32_t unique_full_blocks = 0;  // number of different blocks with 512 tokens
};

// Reads a trace. `name`: the file name for errors.
absl::StatusOr<Trace> ReadTrace(std::istream& in, const std::string& name);
// Reads a trace file. Decompresses a file in xz format, whatever its name is.
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

// The eviction policies of a store, and the optimum that knows future requests.
enum class SimulatedPolicy { kDefault, kLru, kOptimum };

// Returns the policy's name: "default", "lru" or "optimum".
const char* PolicyName(SimulatedPolicy policy);
absl::StatusOr<SimulatedPolicy> ParsePolicy(const std::string& name);

// Sizes of a model that determine the bytes of a restore point.
struct ModelShape {
  const char* name = "";
  uint32_t global_layers = 0;
  uint32_t local_layers = 0;
  uint32_t window = 0;    // width of the sliding window in tokens, including the current token
  uint32_t kv_width = 0;  // number of elements of a token's key in one layer, all KV heads together

  // Returns the KV bytes of a token: keys and values of all layers in float32, as workers on CPUs
  // store them.
  uint64_t TokenBytes() const {
    return uint64_t{2} * sizeof(float) * kv_width * (global_layers + local_layers);
  }
};
// Gemma 3 models. Every sixth layer is global.
constexpr std::array<ModelShape, 5> kModelShapes = {{{"270m", 3, 15, 512, 256},
                                                     {"1b", 4, 22, 512, 256},
                                                     {"4b", 5, 29, 1024, 1024},
                                                     {"12b", 8, 40, 1024, 2048},
                                                     {"27b", 10, 52, 1024, 2048}}};

// Returns the hit rate of a trace.
//
// Without a model (null), the cache stores blocks with all layers, and evicts them one by one.
// `capacity` is a fraction of the trace's different blocks. The result is the fraction of all
// prompts' blocks that were found, where each prompt counts up to its first missing block. With a
// model, the cache stores restore points as the store does: global layers of the whole prefix, and
// local layers of the last window. For each prompt the cache stores restore points at its end, one
// block before the end, and where another prompt diverged from it. `capacity` is a fraction of the
// bytes that all full blocks with all layers would have. The result is the fraction of all tokens
// that were restored. With a model, kOptimum is Belady's rule for restore points, which is very
// good but not proven optimal.
double HitRate(const Trace& trace, const ModelShape* model, SimulatedPolicy policy,
               double capacity);

struct FleetShape {
  uint32_t nodes = 1;
  uint64_t node_blocks = 0;    // capacity of each store's own memory
  uint64_t shared_blocks = 0;  // capacity of the engine that all stores share
  uint32_t shards = 3;         // number of shards of the engine, which have equal sizes
  uint32_t samples = 64;       // the Redis setting maxmemory-samples
  absl::Duration ttl = absl::Hours(24);
  // Whether the first block of a request determines the store that serves the request. Otherwise
  // any store serves it.
  bool affinity = false;
};

// Fractions of all prompts' blocks, where each prompt counts up to its first missing block.
struct FleetRates {
  double found = 0;   // found in the store that served the request, or in the engine
  double shared = 0;  // found only in the engine
};

// Several stores that share one key-value engine.
//
// A store evicts blocks of its own memory with the policy of real stores. The engine evicts blocks
// by their expiry, which the stores choose with the code of real stores (shared_ttl_policy.h). A
// block is found if the store that serves the request or the engine has it. Blocks from the engine
// are copied to the store. Missing blocks are computed and published, and the store then writes the
// blocks of the prompt that the engine does not have to the engine.
class Fleet {
 public:
  explicit Fleet(const FleetShape& shape);
  ~Fleet();

  struct Found {
    size_t blocks = 0;  // number of blocks of the prompt before the first missing block
    size_t shared = 0;  // how many of these blocks were only in the engine
  };
  // Serves a request at store number `node`. Afterwards the prompt is computed, published and
  // written to the engine.
  Found Serve(const TraceRequest& request, size_t node);
  // Returns the expiry of a block in the engine; InfinitePast if the block is not there.
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

// Runs the program hearth-simulate: parses the command line and simulates. Returns the exit code.
int RunSimulator(int argc, const char* const* argv, Console& outside);

}  // namespace hearth

#endif  // HEARTH_BENCH_SIMULATE_SIMULATE_H_
