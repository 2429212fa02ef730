// Test harness: runs an engine on a tiny random checkpoint, and requests to their end. Tests wait
// for notifications, with a timeout that is reached only if the engine hangs.
#ifndef HEARTH_TESTS_WORKER_ENGINE_ENGINE_HARNESS_H_
#define HEARTH_TESTS_WORKER_ENGINE_ENGINE_HARNESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/memory_prefix_cache.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/engine/engine.h"

namespace hearth {

// Size of a worker's pool, which no test fills.
inline constexpr uint64_t kPoolBytes = 64 << 20;

// Timeout that means that the engine hangs; long enough for a busy machine.
inline constexpr absl::Duration kHang = absl::Seconds(120);

// Collects the callbacks of one request. The destructor waits for callbacks that are still
// expected.
class Collector {
 public:
  Collector() = default;
  ~Collector();
  // Returns callbacks that store their arguments here. Call once, for a request that is accepted.
  EngineCallbacks Callbacks(bool writes = true);

  // These methods wait for an event. They abort the test after kHang.
  void WaitStarted() { Wait(&started_); }
  void WaitFirstToken() { Wait(&first_token_); }
  void WaitEnd() { Wait(&ended_); }
  void WaitPublished() { Wait(&published_); }
  void WaitAll();  // waits for the end, and for the publish if the request writes prefixes

  // Called on the engine's thread with the index of each token (from 0). Return false to end the
  // sequence.
  std::function<bool(size_t)> on_token;

  // Results. Read `outcome` after WaitPublished, all others after WaitEnd.
  StartedInfo started;
  FinishedInfo finished;
  absl::Status error;
  std::vector<int32_t> tokens;
  PublishOutcome outcome;
  bool was_started() const { return started_.HasBeenNotified(); }

 private:
  static void Wait(absl::Notification* event);
  bool submitted_ = false, writes_ = false;
  absl::Notification started_, first_token_, ended_, published_;
};

// Returns a deterministic prompt. If two prompts have the same seed, the shorter prompt is a prefix
// of the longer.
std::vector<int32_t> Prompt(size_t tokens, uint64_t seed = 1, int vocab_size = 160);
// Returns a prompt whose first `head` tokens come from one seed, and its other tokens from another.
std::vector<int32_t> ForkedPrompt(size_t head, size_t tokens, uint64_t head_seed,
                                  uint64_t tail_seed);

// An engine with an optional in-memory cache, which several engines may share.
class TestWorker {
 public:
  explicit TestWorker(const std::string& model_dir, EngineOptions options = SmallOptions(),
                      std::shared_ptr<MemoryPrefixCache> cache = nullptr, bool with_cache = true);
  static EngineOptions SmallOptions();  // for class exact

  Engine* operator->() { return engine_.get(); }
  const std::shared_ptr<MemoryPrefixCache>& cache() const { return cache_; }
  uint64_t Counter(const std::string& name) { return engine_->Stats().counters.at(name); }

  // Runs a request to its end, and to the end of its publish if it writes prefixes. Aborts the test
  // if the request is refused.
  std::unique_ptr<Collector> Run(const EngineRequest& request);
  std::shared_ptr<EngineRequestHandle> Submit(const EngineRequest& request, Collector* collector);
  void Stop() { engine_.reset(); }

 private:
  std::shared_ptr<MemoryPrefixCache> cache_;  // outlives the engine
  std::unique_ptr<Engine> engine_;
};

// Returns a greedy request for `max_new_tokens` tokens that ignores end tokens.
EngineRequest Request(std::vector<int32_t> prompt, std::vector<uint32_t> breakpoints = {},
                      uint32_t max_new_tokens = 2);

// Returns options for class invariant; the self-test runs once per process. If the environment has
// HEARTH_TEST_DEVICE, that device computes and checkpoints are in bfloat16; otherwise the CPU
// computes.
EngineOptions InvariantOptions(int threads = 2);
// Returns the KV bytes of one chunk in all layers.
uint64_t ChunkBytes(const KvLayout& layout);

// Waits until the pool alone uses KV bytes, and returns them. `boundaries`: the restore points in
// the pool. Blocks of incomplete chunks are not in the pool; on a device, a copy that is not sealed
// yet holds such a block.
uint64_t SettledKvBytes(TestWorker* worker, const std::vector<uint32_t>& boundaries);

struct NamedGeometry {
  const char* name;
  TinyGeometry geometry;
  const char* dtype = "float32";
};
// Returns four model shapes: a window below C = 16; a window of several chunks; several KV heads
// with irregular layer types; the third in bfloat16.
const std::vector<NamedGeometry>& Geometries();
// Returns the folder of a random checkpoint of this shape, written once per process.
const std::string& ModelDir(const TinyGeometry& geometry);

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_ENGINE_ENGINE_HARNESS_H_
