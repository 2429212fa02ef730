// The harness of the engine's tests: an engine on a tiny random checkpoint, and requests run to
// their end. Waits are notifications with a limit that only a broken engine reaches.
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

// Of a worker's own pool: more than any test fills.
inline constexpr uint64_t kPoolBytes = 64 << 20;

// Long enough for a busy machine; only a hang takes it.
inline constexpr absl::Duration kHang = absl::Seconds(120);

// Collects one request's callbacks. Destroyed, it waits for those still to come.
class Collector {
 public:
  Collector() = default;
  ~Collector();
  // Called once, for a request that is accepted.
  EngineCallbacks Callbacks(bool writes = true);

  // Wait for the events; they abort the test after kHang.
  void WaitStarted() { Wait(&started_); }
  void WaitFirstToken() { Wait(&first_token_); }
  void WaitEnd() { Wait(&ended_); }
  void WaitPublished() { Wait(&published_); }
  void WaitAll();  // the end, and the publish when there is one

  // Called on the engine's thread with each token's number (from 0); its answer ends the sequence.
  std::function<bool(size_t)> on_token;

  // To be read after WaitEnd (outcome: WaitPublished).
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

// A deterministic prompt; prompts of one seed are prefixes of each other.
std::vector<int32_t> Prompt(size_t tokens, uint64_t seed = 1, int vocab_size = 160);
// `head` tokens of one seed, the rest of another.
std::vector<int32_t> ForkedPrompt(size_t head, size_t tokens, uint64_t head_seed,
                                  uint64_t tail_seed);

// An engine, and optionally a cache in memory, which may be shared with another engine.
class TestWorker {
 public:
  explicit TestWorker(const std::string& model_dir, EngineOptions options = SmallOptions(),
                      std::shared_ptr<MemoryPrefixCache> cache = nullptr, bool with_cache = true);
  static EngineOptions SmallOptions();  // class exact

  Engine* operator->() { return engine_.get(); }
  const std::shared_ptr<MemoryPrefixCache>& cache() const { return cache_; }
  uint64_t Counter(const std::string& name) { return engine_->Stats().counters.at(name); }

  // Runs a request to its end, and its publish when it writes. Aborts when it is refused.
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

// Of the class invariant; self-tests are remembered for the process. If the environment has
// HEARTH_TEST_DEVICE, that device computes, and checkpoints are in bfloat16; else the CPU computes.
EngineOptions InvariantOptions(int threads = 2);
// Of a chunk of all layers.
uint64_t ChunkBytes(const KvLayout& layout);

struct NamedGeometry {
  const char* name;
  TinyGeometry geometry;
  const char* dtype = "float32";
};
// Window below C = 16, window above several C, several KV heads with irregular layer types; that
// one in bfloat16 too.
const std::vector<NamedGeometry>& Geometries();
// The checkpoint of a geometry, written once a process.
const std::string& ModelDir(const TinyGeometry& geometry);

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_ENGINE_ENGINE_HARNESS_H_
