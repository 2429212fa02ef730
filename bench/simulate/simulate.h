// The simulator: replays a trace against a retention policy, without bytes, and computes the hit
// rate that a cache of a given size, or a fleet of stores, would have had.
//
// Functions are pure and thread safe, classes are not. Takes a second or two for 10,000 requests
// and one size.
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

// Requests in the format of Mooncake's traces, one JSON object per line: timestamp (ms),
// input_length (tokens), hash_ids (one per block of 512 tokens; the last block may be shorter).
// Other fields are ignored. Blocks are equal if their ids and all ids before them are equal. Errors
// name file and line.
struct TraceRequest {
  int64_t at_ms = 0;
  uint32_t tokens = 0;
  std::vector<uint32_t> blocks;  // dense numbers from 0, in order of appearance
};

struct Trace {
  static constexpr uint32_t kBlockTokens = 512;
  // 50 million blocks take 200 MB here, and cover more than a day of a large service.
  static constexpr uint64_t kMaxBlocks = 50'000'000;
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  static constexpr size_t kMaxUnpackedBytes = size_t{4} << 30;

  std::vector<TraceRequest> requests;
  uint32_t unique_blocks = 0;
  uint32_t unique_full_blocks = 0;  // without blocks that end a prompt with fewer than 512 tokens
};

// Reads a trace. `name`: file name for errors.
absl::StatusOr<Trace> ReadTrace(std::istream& in, const std::string& name);
// Reads a trace file; decompresses an xz-compressed file, whatever its name.
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

// The policies of a store, and the offline optimum with known future.
enum class SimulatedPolicy { kDefault, kLru, kOptimum };

// Returns "default", "lru" or "optimum".
const char* PolicyName(SimulatedPolicy policy);
absl::StatusOr<SimulatedPolicy> ParsePolicy(const std::string& name);

// The shape of a model, which determines the bytes of restore points.
struct ModelShape {
  const char* name = "";
  uint32_t global_layers = 0;
  uint32_t local_layers = 0;
  uint32_t window = 0;    // tokens, including the current token
  uint32_t kv_width = 0;  // elements of a token's key in one layer, all KV heads together

  // Bytes of a token: keys and values of all layers in float32, as workers on CPUs keep them.
  uint64_t TokenBytes() const {
    return uint64_t{2} * sizeof(float) * kv_width * (global_layers + local_layers);
  }
};
// Gemma 3: every sixth layer is global.
constexpr std::array<ModelShape, 5> kModelShapes = {{{"270m", 3, 15, 512, 256},
                                                     {"1b", 4, 22, 512, 256},
                                                     {"4b", 5, 29, 1024, 1024},
                                                     {"12b", 8, 40, 1024, 2048},
                                                     {"27b", 10, 52, 1024, 2048}}};

// Returns the hit rate of a trace.
//
// If `model` is null: blocks of all layers, kept independently. `capacity` is a share of the
// trace's unique blocks. The result is the share of all prompts' blocks that were found, counted
// from a prompt's start to the first gap.
//
// With a model: restore points as in the store, with global layers of the whole prefix and local
// layers of the tail. The cache keeps a prompt's end, the block before it, and the point where a
// second prompt diverged. `capacity` is a share of the bytes of all full blocks, stored dense. The
// result is the share of all tokens that were restored. kOptimum is then Belady's rule on restore
// points: a very good choice with known future, but not proven optimal.
double HitRate(const Trace& trace, const ModelShape* model, SimulatedPolicy policy,
               double capacity);

struct FleetShape {
  uint32_t nodes = 1;
  uint64_t node_blocks = 0;    // in each store's own memory
  uint64_t shared_blocks = 0;  // in the engine
  uint32_t shards = 3;         // shards of the engine, of equal size
  uint32_t samples = 64;       // Redis' maxmemory-samples
  absl::Duration ttl = absl::Hours(24);
  // each request goes to the store that its first block chooses, instead of any store
  bool affinity = false;
};

// Shares of all prompts' blocks, counted from a prompt's start to the first gap.
struct FleetRates {
  double found = 0;   // found in the store or the engine
  double shared = 0;  // found only in the engine
};

// Several stores that share one key-value engine.
// A store keeps blocks in its own memory by the policy of real stores. The engine evicts blocks by
// expiry, which the stores' own code chooses (shared_ttl_policy.h). A block is found if the asked
// store or the engine has it; blocks from the engine are copied to the store. Missing blocks are
// computed and published, and the store then writes the blocks of the prompt that the engine does
// not have.
class Fleet {
 public:
  explicit Fleet(const FleetShape& shape);
  ~Fleet();

  struct Found {
    size_t blocks = 0;  // blocks of the prompt up to the first gap
    size_t shared = 0;  // of these, only in the engine
  };
  // Serves a request at store `node`. On return the prompt is computed, published, and written to
  // the engine.
  Found Serve(const TraceRequest& request, size_t node);
  // Returns the block's expiry in the engine; InfinitePast: absent.
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

// Runs the program: parses the command line and simulates. Returns the exit code.
int RunSimulator(int argc, const char* const* argv, Console& outside);

}  // namespace hearth

#endif  // HEARTH_BENCH_SIMULATE_SIMULATE_H_
