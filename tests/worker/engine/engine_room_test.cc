// KV memory: requests wait in order if memory is short. engine_preemption_test.cc tests preemption.

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/hash_gemma.h"
#include "tests/support/test_folder.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/engine/runner/exactness_choice.h"
#include "worker/engine/runner/kv_snapshot.h"
#include "worker/model/model_config.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string& RoomDir() { return ModelDir(Geometries()[0].geometry); }

// Returns options with KV memory for `chunks` chunks of 16 tokens, and without a pool.
EngineOptions Room(uint64_t chunks) {
  static const uint64_t chunk =
      ChunkBytes(TestWorker(RoomDir(), InvariantOptions(), nullptr, false)->layout());
  EngineOptions options = InvariantOptions();
  options.memory.kv_bytes = chunks * chunk;
  options.memory.pool_bytes = 0;
  return options;
}

EngineRequest Uncached(std::vector<int32_t> prompt, uint32_t max_new_tokens) {
  EngineRequest request = Request(std::move(prompt), {}, max_new_tokens);
  request.cache = CacheMode::kOff;
  return request;
}

TEST(EngineKvMemoryTest, RequestsStartInOrderWithinBudget) {
  struct Asked {
    size_t prompt, answer;
  };
  // The first request leaves too little memory for the second. The third and fourth would fit, but
  // must wait for the second.
  const std::vector<Asked> asked = {{40, 60}, {100, 44}, {10, 6}, {12, 4}, {60, 40}};
  TestWorker alone(RoomDir(), InvariantOptions(), nullptr, /*with_cache=*/false);
  const EngineOptions options = Room(10);
  TestWorker worker(RoomDir(), options, nullptr, /*with_cache=*/false);
  std::vector<std::unique_ptr<Collector>> runs;
  std::vector<size_t> begun;
  uint64_t most = 0;
  absl::Notification all_wait;
  for (size_t i = 0; i < asked.size(); ++i) {
    runs.push_back(std::make_unique<Collector>());
    runs.back()->on_token = [&](size_t) {
      all_wait.WaitForNotification();
      most = std::max(most, worker->Stats().kv_used_bytes);
      return true;
    };
  }
  const auto request = [&](size_t i) {
    return Uncached(Prompt(asked[i].prompt, i + 1), static_cast<uint32_t>(asked[i].answer));
  };
  for (size_t i = 0; i < asked.size(); ++i) {
    EngineCallbacks callbacks = runs[i]->Callbacks(/*writes=*/false);
    callbacks.on_started = [&, i](const StartedInfo&) { begun.push_back(i); };
    ASSERT_TRUE(worker->Submit(request(i), callbacks).ok());
  }
  all_wait.Notify();
  for (size_t i = 0; i < asked.size(); ++i) {
    runs[i]->WaitEnd();
    ASSERT_TRUE(runs[i]->error.ok()) << i << runs[i]->error;
    EXPECT_EQ(runs[i]->tokens, alone.Run(request(i))->tokens) << i;
  }
  EXPECT_THAT(begun, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_LE(most, options.memory.kv_bytes);
  EXPECT_EQ(worker->Stats().kv_used_bytes, 0u);
}

TEST(EngineKvMemoryTest, CancelledWaiterLetsNextStart) {
  TestWorker worker(RoomDir(), Room(10), nullptr, /*with_cache=*/false);
  Collector large, waiting, next;
  std::shared_ptr<EngineRequestHandle> handle;
  absl::Notification submitted;
  large.on_token = [&](size_t number) {
    submitted.WaitForNotification();
    if (number == 2) handle->Cancel();
    return true;
  };
  worker.Submit(Uncached(Prompt(40), 60), &large);
  handle = worker.Submit(Uncached(Prompt(100), 20), &waiting);
  worker.Submit(Uncached(Prompt(10), 4), &next);
  submitted.Notify();
  waiting.WaitEnd();
  EXPECT_EQ(waiting.error.code(), absl::StatusCode::kCancelled);
  large.WaitEnd();
  next.WaitEnd();
  EXPECT_TRUE(large.error.ok());
  EXPECT_TRUE(next.error.ok());
}

TEST(EngineKvMemoryTest, RequestWaitsForPublishMemory) {
  auto slow = std::make_shared<MemoryPrefixCache>(
      TestWorker(RoomDir(), InvariantOptions(), nullptr, false)->layout());
  absl::Notification publishes, release;
  slow->before_publish = [&] {
    publishes.Notify();
    release.WaitForNotification();
  };
  TestWorker worker(RoomDir(), Room(6), slow);
  Collector first, second;
  worker.Submit(Request(Prompt(150), {}, 0), &first);
  first.WaitEnd();
  publishes.WaitForNotification();  // a publish that has not begun would be dropped
  EXPECT_GT(worker->Stats().kv_used_bytes, 0u);
  worker.Submit(Uncached(Prompt(100, 2), 9), &second);
  release.Notify();
  second.WaitEnd();
  EXPECT_TRUE(second.error.ok()) << second.error;
}

// A publish and the pool hold the same blocks. The end of the publish frees no block, but the pool
// can evict the blocks from then on.
TEST(EngineKvMemoryTest, PublishEndMakesPoolMemoryEvictable) {
  auto slow = std::make_shared<MemoryPrefixCache>(
      TestWorker(RoomDir(), InvariantOptions(), nullptr, false)->layout());
  absl::Notification publishes, release;
  slow->before_publish = [&] {
    publishes.Notify();
    release.WaitForNotification();
  };
  EngineOptions options = Room(6);
  options.memory.pool_bytes = kPoolBytes;
  TestWorker worker(RoomDir(), options, slow);
  Collector first, second;
  worker.Submit(Request(Prompt(150), {}, 0), &first);
  first.WaitEnd();
  publishes.WaitForNotification();
  EngineRequest request = Uncached(Prompt(100, 2), 9);
  request.deadline = absl::Now() + absl::Minutes(1);
  worker.Submit(request, &second);
  // Two cancelled requests end in two rounds, in which the engine has also tried to admit `second`.
  for (int i = 0; i < 2; ++i) {
    Collector cancelled;
    worker.Submit(Uncached(Prompt(5), 1), &cancelled)->Cancel();
    cancelled.WaitEnd();
  }
  release.Notify();
  second.WaitEnd();
  EXPECT_TRUE(second.error.ok()) << second.error;
}

// A waiting request evicts nothing from the pool if eviction would not free enough memory for it.
TEST(EngineKvMemoryTest, WaitingRequestAvoidsUselessEviction) {
  EngineOptions options = Room(14);
  options.memory.pool_bytes = kPoolBytes;
  TestWorker worker(RoomDir(), options, nullptr, /*with_cache=*/false);
  worker.Run(Request(Prompt(64, 9), {}, 1));  // puts four chunks into the pool
  const uint64_t pooled = worker->Stats().pool_bytes;
  ASSERT_GT(pooled, 0u);
  Collector large, waiting;
  absl::Notification holds_memory, submitted;
  uint64_t least = pooled;
  large.on_token = [&](size_t) {
    if (!holds_memory.HasBeenNotified()) holds_memory.Notify();
    submitted.WaitForNotification();
    least = std::min(least, worker->Stats().pool_bytes);
    return true;
  };
  worker.Submit(Uncached(Prompt(150), 40), &large);  // allocates ten chunks in its first step
  holds_memory.WaitForNotification();
  worker.Submit(Uncached(Prompt(180, 2), 4), &waiting);  // does not fit while `large` runs
  submitted.Notify();
  large.WaitEnd();
  waiting.WaitEnd();
  ASSERT_TRUE(large.error.ok() && waiting.error.ok()) << large.error << waiting.error;
  EXPECT_EQ(least, pooled);
  EXPECT_EQ(worker->Stats().pool_bytes, pooled)
      << "the waiting request must not evict from the pool";
}

TEST(EngineKvMemoryTest, SlowStoreDropsOldestPublish) {
  TinyGeometry geometry = Geometries()[0].geometry;
  geometry.layer_types = "gg";
  geometry.seed = 79;
  const std::string& dir = ModelDir(geometry);
  const KvLayout layout = TestWorker(dir, InvariantOptions(), nullptr, false)->layout();
  auto slow = std::make_shared<MemoryPrefixCache>(layout);
  // Both threads of the publisher hold a publish while further publishes wait.
  absl::Notification both_publish, release;
  std::atomic<int> publishes{0};
  slow->before_publish = [&] {
    if (++publishes == 2) both_publish.Notify();
    release.WaitForNotification();
  };
  const uint64_t chunk = ChunkBytes(layout);
  EngineOptions options = Room(400);
  options.memory.staging_bytes = 12 * chunk;  // memory for two prompts of six chunks
  TestWorker worker(dir, options, slow);
  std::vector<std::unique_ptr<Collector>> runs;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    runs.push_back(std::make_unique<Collector>());
    EngineRequest request = Request(Prompt(96, seed), {}, 0);
    request.cache = CacheMode::kWrite;
    worker.Submit(request, runs.back().get());
    runs.back()->WaitEnd();
    if (seed == 2) both_publish.WaitForNotification();
  }
  EXPECT_LE(worker->Stats().kv_used_bytes, (2 + 2) * 6 * chunk);
  const uint64_t dropped = worker.Counter("publishes_dropped");
  EXPECT_EQ(dropped, 4u);
  release.Notify();
  uint64_t noted = 0;
  for (const auto& run : runs) {
    run->WaitAll();
    ASSERT_TRUE(run->error.ok()) << run->error;
    if (run->outcome.note.find("hold too much memory") != std::string::npos) ++noted;
  }
  EXPECT_EQ(noted, dropped);
  EXPECT_GT(runs.back()->outcome.published_tokens, 0u) << "the newest publish must not be dropped";
}

// At each breakpoint, the sequence keeps the local blocks that would otherwise leave its window.
TEST(EngineKvMemoryTest, ManyBreakpointsStayWithinLimit) {
  TinyGeometry geometry = Geometries()[0].geometry;
  geometry.window = 24;
  geometry.context_tokens = 1024;
  geometry.seed = 80;
  const std::string& dir = ModelDir(geometry);
  std::vector<uint32_t> breakpoints;
  for (uint32_t at = 48; at < 800; at += 96) breakpoints.push_back(at);
  EngineOptions options = InvariantOptions();
  options.memory.pool_bytes = 0;
  TestWorker all(dir, options);
  const auto cold = all.Run(Request(Prompt(800), breakpoints, 3));
  EXPECT_EQ(all.Counter("staging_skips"), 0u);
  const KvLayout layout = all->layout();
  const uint64_t local = layout.ObjectBytes(16, LayerGroup::kLocal);
  EngineOptions little = options;
  little.memory.staging_bytes = 6 * local;
  EngineOptions tight = options;
  // Memory for exactly 803 tokens, with local blocks of one window and one chunk.
  const uint64_t seen = (24 + 3 * 16 - 2) / 16;
  tight.memory.kv_bytes = 51 * layout.ObjectBytes(16, LayerGroup::kGlobal) + seen * local;
  for (const EngineOptions& bounded : {little, tight}) {
    TestWorker worker(dir, bounded);
    const auto run = worker.Run(Request(Prompt(800), breakpoints, 3));
    ASSERT_TRUE(run->error.ok()) << run->error;
    EXPECT_EQ(run->tokens, cold->tokens);
    EXPECT_GT(worker.Counter("staging_skips"), 0u);
    EXPECT_THAT(run->outcome.note, HasSubstr("restore points were not saved"));
  }
}

// A restore point in the pool that leaves too little memory for the request must not block the
// request forever.
TEST(EngineKvMemoryTest, PoolHitBlockingRequestIsReleased) {
  EngineOptions options = Room(10);
  options.memory.pool_bytes = kPoolBytes;
  TestWorker worker(RoomDir(), options, nullptr, /*with_cache=*/false);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const auto first = worker.Run(Request(Prompt(150, seed), {}, 1));
    ASSERT_TRUE(first->error.ok()) << first->error;
    const auto again = worker.Run(Request(Prompt(150, seed), {}, 10));
    ASSERT_TRUE(again->error.ok()) << again->error;
    EXPECT_EQ(again->tokens.front(), first->tokens.front());
  }
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(KvBytesTest, DefaultDependsOnMemoryAndWeights) {
  EXPECT_EQ(DefaultKvBytes(64 * kGiB, 0, 0), 32 * kGiB);
  EXPECT_EQ(DefaultKvBytes(64 * kGiB, 8 * kGiB, 2 * kGiB), 22 * kGiB);
  EXPECT_EQ(DefaultKvBytes(32 * kGiB, 24 * kGiB, 0), 2 * kGiB);
  EXPECT_EQ(DefaultKvBytes(16 * kGiB, 24 * kGiB, kGiB), 0u);
}

void WriteText(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(KvBytesTest, SmallestControlGroupLimitCounts) {
  const TestFolder root;
  const uint64_t machine = MemoryBytes(root.path());
  EXPECT_GT(machine, 0u);
  const std::string groups = root.path() + "/sys/fs/cgroup";
  WriteText(root.path() + "/proc/self/cgroup", "1:name=x:/y\n0::/team.slice/hearth.service\n");
  WriteText(groups + "/memory.max", "max\n");
  WriteText(groups + "/team.slice/hearth.service/memory.max", "max\n");
  EXPECT_EQ(MemoryBytes(root.path()), machine);
  WriteText(groups + "/team.slice/memory.max", "70000000\n");
  EXPECT_EQ(MemoryBytes(root.path()), 70000000u);
  WriteText(groups + "/team.slice/hearth.service/memory.max", "60000000\n");
  EXPECT_EQ(MemoryBytes(root.path()), 60000000u);
  WriteText(groups + "/memory/memory.limit_in_bytes", "50000000\n");
  EXPECT_EQ(MemoryBytes(root.path()), 50000000u);
}

TEST(KvBytesTest, ChosenDefaultIsNoted) {
  EngineOptions options = InvariantOptions();
  options.memory.pool_bytes = 3 << 20;
  TestWorker worker(RoomDir(), options, nullptr, /*with_cache=*/false);
  EXPECT_THAT(worker->notes(), testing::Contains(testing::AllOf(
                                   HasSubstr("kv-bytes: "), HasSubstr("--pool-bytes is 3 MiB"))));
  const uint64_t chosen = worker->Stats().kv_budget_bytes;
  EXPECT_LT(chosen, MemoryBytes() / 2 - options.memory.pool_bytes)
      << "the weights reduce the default";
  options.memory.kv_bytes = kGiB;
  TestWorker told(RoomDir(), options, nullptr, /*with_cache=*/false);
  EXPECT_THAT(told->notes(), testing::Not(testing::Contains(HasSubstr("kv-bytes"))));
}

// Returns options with a KV budget in the classes that run on torch, as on a device or with
// --kv-bytes.
EngineOptions ExactRoom(uint64_t tokens) {
  static const uint64_t token_bytes = [] {
    TestWorker any(RoomDir());
    return uint64_t{any->layout().layers.size()} * any->layout().SliceBytes(1);
  }();
  EngineOptions options = TestWorker::SmallOptions();
  options.memory.kv_bytes = tokens * token_bytes;
  return options;
}

TEST(EngineKvMemoryTest, ExactRequestWaitsForMemory) {
  TestWorker alone(RoomDir(), TestWorker::SmallOptions(), nullptr, /*with_cache=*/false);
  TestWorker worker(RoomDir(), ExactRoom(200), nullptr, /*with_cache=*/false);
  Collector first, second;
  uint64_t used = 0;
  absl::Notification submitted;
  first.on_token = [&](size_t) {
    submitted.WaitForNotification();
    used = worker->Stats().kv_used_bytes;
    return true;
  };
  EngineCallbacks callbacks = second.Callbacks(/*writes=*/false);
  callbacks.on_started = [&](const StartedInfo&) {
    EXPECT_EQ(first.tokens.size(), 20u)
        << "the second request must wait for the first";  // on_finished may come later
  };
  worker.Submit(Uncached(Prompt(100), 20), &first);
  ASSERT_TRUE(worker->Submit(Uncached(Prompt(100, 2), 20), callbacks).ok());
  submitted.Notify();
  first.WaitEnd();
  second.WaitEnd();
  EXPECT_TRUE(first.error.ok()) << first.error;
  EXPECT_TRUE(second.error.ok()) << second.error;
  EXPECT_EQ(second.tokens, alone.Run(Uncached(Prompt(100, 2), 20))->tokens);
  EXPECT_EQ(used, ExactRoom(120).memory.kv_bytes);
  EXPECT_EQ(worker->Stats().kv_used_bytes, 0u);
}

TEST(EngineKvMemoryTest, TooLargeExactRequestIsRefused) {
  TestWorker worker(RoomDir(), ExactRoom(200), nullptr, /*with_cache=*/false);
  EngineRequest samples = Uncached(Prompt(60), 20);
  samples.samples = 3;
  for (const EngineRequest& request : {Uncached(Prompt(190), 20), samples}) {
    const auto refused = worker.Run(request);
    EXPECT_EQ(refused->error.code(), absl::StatusCode::kInvalidArgument) << refused->error;
    EXPECT_THAT(std::string(refused->error.message()), HasSubstr("raise --kv-bytes"));
  }
  EXPECT_TRUE(worker.Run(Uncached(Prompt(180), 20))->error.ok());
}

TEST(EngineKvMemoryTest, AllocationFailureAllowsRetry) {
  TestWorker worker(RoomDir(), ExactRoom(200), nullptr, /*with_cache=*/false);
  LimitCacheBytes(1, /*throws=*/true);
  const auto refused = worker.Run(Uncached(Prompt(100), 20));
  LimitCacheBytes(0);
  EXPECT_EQ(refused->error.code(), absl::StatusCode::kResourceExhausted) << refused->error;
  EXPECT_TRUE(worker.Run(Uncached(Prompt(100), 20))->error.ok());
}

// The waiting request can be woken only by the freed memory: no other event follows.
TEST(EngineKvMemoryTest, LateFreedMemoryWakesWaitingRequest) {
  struct HoldingCache : MemoryPrefixCache {
    using MemoryPrefixCache::MemoryPrefixCache;
    PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration) override {
      absl::MutexLock lock(&mu);
      held.insert(held.end(), spec.objects.begin(), spec.objects.end());
      return {};
    }
    absl::Mutex mu;
    KvObjects held;
  };
  auto cache = std::make_shared<HoldingCache>(
      TestWorker(RoomDir(), InvariantOptions(), nullptr, false)->layout());
  TestWorker worker(RoomDir(), Room(10), cache);
  worker.Run(Request(Prompt(100), {}, 2));
  ASSERT_GT(worker->Stats().kv_used_bytes, 0u) << "the cache holds blocks";
  Collector waiting;
  worker.Submit(Uncached(Prompt(120, 2), 9), &waiting);
  KvObjects held;
  {
    absl::MutexLock lock(&cache->mu);
    held.swap(cache->held);
  }
  held.clear();
  waiting.WaitEnd();
  EXPECT_TRUE(waiting.error.ok()) << waiting.error;
}

// Another program uses the device's memory, so an allocation fails although it is within the
// budget.
TEST(EngineKvMemoryTest, DeviceWithoutMemoryRefusesRequest) {
  TestWorker worker(RoomDir(), ExactRoom(200), nullptr, /*with_cache=*/false);
  LimitCacheBytes(ExactRoom(100).memory.kv_bytes);
  const auto refused = worker.Run(Uncached(Prompt(100), 20));
  LimitCacheBytes(0);
  EXPECT_EQ(refused->error.code(), absl::StatusCode::kResourceExhausted) << refused->error;
  EXPECT_TRUE(worker.Run(Uncached(Prompt(100), 20))->error.ok());
}

}  // namespace
}  // namespace hearth
