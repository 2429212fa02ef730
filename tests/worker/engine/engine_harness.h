// Harness of the engine's tests: an engine on a tiny random checkpoint, and requests run to their
// end. Waits are notifications with a timeout that only a broken engine reaches.
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

// Size of a worker's pool: more than any test fills.
inline constexpr uint64_t kPoolBytes = 64 << 20;

// Timeout for hangs; long enough for a busy machine.
inline constexpr absl::Duration kHang = absl::Seconds(120);

// Collects the callbacks of one request. The destructor waits for the remaining callbacks.
class Collector {
 public:
  Collector() = default;
  ~Collector();
  // Called once, for an accepted request.
  EngineCallbacks Callbacks(bool writes = true);

  // These wait for events, and abort the test after kHang.
  void WaitStarted() { Wait(&started_); }
  void WaitFirstToken() { Wait(&first_token_); }
  void WaitEnd() { Wait(&ended_); }
  void WaitPublished() { Wait(&published_); }
  void WaitAll();  // the end, and the publish if the request writes

  // Called on the engine's thread with each token's index (from 0). Returning false ends the
  // sequence.
  std::function<bool(size_t)> on_token;

  // Read these after WaitEnd (`outcome`: after WaitPublished).
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

// Returns a deterministic prompt. Prompts of the same seed are prefixes of each other.
std::vector<int32_t> Prompt(size_t tokens, uint64_t seed = 1, int vocab_size = 160);
// Returns `head` tokens of one seed, followed by tokens of another seed.
std::vector<int32_t> ForkedPrompt(size_t head, size_t tokens, uint64_t head_seed,
                                  uint64_t tail_seed);

// An engine, with an optional cache in memory that several engines may share.
class TestWorker {
 public:
  explicit TestWorker(const std::string& model_dir, EngineOptions options = SmallOptions(),
                      std::shared_ptr<MemoryPrefixCache> cache = nullptr, bool with_cache = true);
  static EngineOptions SmallOptions();  // class exact

  Engine* operator->() { return engine_.get(); }
  const std::shared_ptr<MemoryPrefixCache>& cache() const { return cache_; }
  uint64_t Counter(const std::string& name) { return engine_->Stats().counters.at(name); }

  // Runs a request to its end, and its publish if it writes. Aborts if the request is refused.
  std::unique_ptr<Collector> Run(const EngineRequest& request);
  std::shared_ptr<EngineRequestHandle> Submit(const EngineRequest& request, Collector* collector);
  void Stop() { engine_.reset(); }

 private:
  std::shared_ptr<MemoryPrefixCache> cache_;  // outlives the engine
  std::unique_ptr<Engine> engine_;
};

// A greedy request for `max_new_tokens` that ignores end tokens.
EngineRequest Request(std::vector<int32_t> prompt, std::vector<uint32_t> breakpoints = {},
                      uint32_t max_new_tokens = 2);

// Options of the class invariant; self-tests run once per process. If the environment has
// HEARTH_TEST_DEVICE, that device computes, and checkpoints are in bfloat16; else the CPU computes.
EngineOptions InvariantOptions(int threads = 2);
// Returns the bytes of a chunk in all layers.
uint64_t ChunkBytes(const KvLayout& layout);

struct NamedGeometry {
  const char* name;
  TinyGeometry geometry;
  const char* dtype = "float32";
};
// A window below C = 16; a window above several C; several KV heads with irregular layer types; the
// same in bfloat16.
const std::vector<NamedGeometry>& Geometries();
// The checkpoint of a geometry, written once per process.
const std::string& ModelDir(const TinyGeometry& geometry);

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_ENGINE_ENGINE_HARNESS_H_
