// How long a request with a prefix of 32k tokens waits before its first step when the worker's pool
// has the prefix, class invariant.
//
//     build/bin/pool_hit_bench [tokens] [rounds]
//
// A model whose keys and values are laid out as Gemma 3 4B's (34 layers, one of six global, 4 KV
// heads of 256, a window of 1,024) and whose weights are next to nothing; the engine is the one
// that serves. A cache in this process gives it a made-up snapshot once, which its pool keeps; then
// the prompt comes again and again. Printed: the time from Submit to on_started, behind which only
// the first step comes; the bytes of the prefix; and how much more memory of keys and values was in
// use when the first token was there than the pool's: what was copied, and the step's own block.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/engine/engine.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {
namespace {

// Whatever is asked for, with bytes that nobody wrote.
class MadeUpCache final : public PrefixCache {
 public:
  explicit MadeUpCache(const KvLayout& layout) : layout_(layout) {}

  FetchOutcome Fetch(const PrefixRequest&, uint32_t, uint32_t max_tokens, absl::Time) override {
    FetchOutcome outcome;
    outcome.matched_tokens = outcome.usable_tokens =
        max_tokens / layout_.chunk_tokens * layout_.chunk_tokens;
    outcome.slowest_tier = Tier::kHost;
    for (const ObjectId& id : NeededObjects(layout_, outcome.usable_tokens)) {
      std::shared_ptr<KvObject> object = NewObject(layout_, id);
      object->slice_digests.resize(layout_.LayersOf(id.group).size());
      bytes_ += object->size_bytes;
      outcome.objects.push_back(std::move(object));
    }
    return outcome;
  }
  PublishOutcome Publish(const PublishRequestSpec&, absl::Time) override { return {}; }
  uint64_t bytes() const { return bytes_; }

 private:
  const KvLayout layout_;
  uint64_t bytes_ = 0;
};

struct Hit {
  absl::Duration before_step;
  uint32_t cached_tokens = 0;
  Tier tier = Tier::kNone;
  uint64_t kv_bytes = 0;  // in use when the first token was there
};

Hit Ask(Engine* engine, std::vector<int32_t> prompt) {
  Hit hit;
  absl::Notification over;
  EngineRequest request;
  request.token_ids = std::move(prompt);
  request.max_new_tokens = 1;
  request.ignore_eos = true;
  request.cache = CacheMode::kRead;
  EngineCallbacks callbacks;
  absl::Time begin;
  callbacks.on_started = [&](const StartedInfo& info) {
    hit.before_step = absl::Now() - begin;
    hit.cached_tokens = info.cached_tokens;
    hit.tier = info.source_tier;
  };
  callbacks.on_token = [&](const SampledToken&) {
    hit.kv_bytes = engine->Stats().kv_used_bytes;
    return true;
  };
  callbacks.on_finished = [&](const FinishedInfo&) { over.Notify(); };
  callbacks.on_error = [&](const absl::Status& status) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  };
  begin = absl::Now();
  if (auto handle = engine->Submit(std::move(request), callbacks); !handle.ok()) {
    std::fprintf(stderr, "%s\n", handle.status().ToString().c_str());
    std::exit(1);
  }
  over.WaitForNotification();
  return hit;
}

int PoolHitBench(uint32_t tokens, int rounds) {
  TinyGeometry geometry;
  geometry.layer_types = "lllllglllllglllllglllllglllllgllll";
  geometry.window = 1024;
  geometry.heads = 4;
  geometry.kv_heads = 4;
  geometry.head_dim = 256;
  geometry.context_tokens = static_cast<int>(tokens) + 16;
  EngineOptions options;
  options.model_dir = NewTinyCheckpoint(geometry, "pool_hit_bench");
  options.exactness = ExactnessChoice::kInvariant;
  options.threads = 2;
  options.memory.kv_bytes = options.memory.pool_bytes = uint64_t{8} << 30;
  options.cache.load = LoadChoice::kAlways;
  options.cache.compute.wait = options.cache.compute.lease = absl::ZeroDuration();
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().ToString().c_str());
    return 1;
  }
  MadeUpCache cache((*engine)->layout());
  (*engine)->SetCache(&cache);
  std::vector<int32_t> prompt(tokens + 1);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(2 + i * 7 % 150);
  const Hit filled = Ask(engine->get(), prompt);
  std::vector<absl::Duration> times;
  uint64_t more_bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    const Hit hit = Ask(engine->get(), prompt);
    if (hit.tier != Tier::kWorker || hit.cached_tokens != filled.cached_tokens) {
      std::fprintf(stderr, "not a hit of the pool\n");
      return 1;
    }
    times.push_back(hit.before_step);
    more_bytes = std::max(more_bytes, hit.kv_bytes - std::min(hit.kv_bytes, cache.bytes()));
  }
  std::sort(times.begin(), times.end());
  std::printf(
      "%u tokens, %.0f MiB: before the first step %.2f ms (median of %d; best %.2f, worst "
      "%.2f; bar 5), %.1f MiB in use beside\n",
      filled.cached_tokens, static_cast<double>(cache.bytes()) / (1 << 20),
      absl::ToDoubleMilliseconds(times[times.size() / 2]), rounds,
      absl::ToDoubleMilliseconds(times.front()), absl::ToDoubleMilliseconds(times.back()),
      static_cast<double>(more_bytes) / (1 << 20));
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  const uint32_t tokens = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 32768;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  return hearth::PoolHitBench(tokens, rounds);
}
