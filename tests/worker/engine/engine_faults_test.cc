// If a cache fails, returns wrong data or is slow, requests take longer but have the same results.

#include <atomic>
#include <memory>
#include <stdexcept>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string& FaultyDir() { return ModelDir(Geometries()[1].geometry); }

EngineOptions NoPool() {
  EngineOptions options = TestWorker::SmallOptions();
  options.memory.pool_bytes = 0;
  return options;
}

// Has a request, its result without a cache, and a store with the first 64 tokens of its prompt.
class EngineFaultsTest : public testing::Test {
 protected:
  EngineFaultsTest() : request_(Request(ForkedPrompt(70, 90, 1, 2))) {
    TestWorker filler(FaultyDir(), NoPool());
    filler.Run(Request(Prompt(75)));
    cache_ = filler.cache();
    EngineRequest bare = request_;
    bare.cache = CacheMode::kOff;
    cold_ = filler.Run(bare);
    filler.Stop();
  }
  void ExpectComputed(const Collector& run) {
    ASSERT_TRUE(run.error.ok()) << run.error;
    EXPECT_EQ(run.started.cached_tokens, 0u);
    EXPECT_EQ(run.started.source_tier, Tier::kNone);
    EXPECT_EQ(run.finished.first_logits_sha256, cold_->finished.first_logits_sha256);
    EXPECT_EQ(run.tokens, cold_->tokens);
  }

  // A worker whose first fetch is blocked in the cache until this object is destroyed.
  struct BlockedFetch {
    ~BlockedFetch() { release.Notify(); }
    absl::Notification release;
    std::atomic<bool> has_begun{false};
    std::unique_ptr<TestWorker> worker;  // destroyed first, because it waits for the fetch
  };
  // Runs the request. If the fetch thread starts after the fetch budget has passed, the fetch does
  // not call the cache: then another worker, with twice the budget, runs the request again.
  std::unique_ptr<BlockedFetch> RunWithBlockedFetch(EngineOptions options) {
    for (options.cache.fetch_budget = absl::Milliseconds(5);; options.cache.fetch_budget *= 2) {
      auto blocked = std::make_unique<BlockedFetch>();
      cache_->before_fetch = [fetch = blocked.get()] {
        fetch->has_begun = true;
        fetch->release.WaitForNotification();
      };
      blocked->worker = std::make_unique<TestWorker>(FaultyDir(), options, cache_);
      ExpectComputed(*blocked->worker->Run(request_));
      if (blocked->has_begun) return blocked;
      if (options.cache.fetch_budget < kHang) continue;
      ADD_FAILURE() << "no fetch called the cache";
      return blocked;
    }
  }

  EngineRequest request_;
  std::shared_ptr<MemoryPrefixCache> cache_;
  std::unique_ptr<Collector> cold_;
};

TEST_F(EngineFaultsTest, CorrectCacheServesThePrefix) {
  TestWorker worker(FaultyDir(), NoPool(), cache_);
  EXPECT_EQ(worker.Run(request_)->started.cached_tokens, 64u);
}

TEST_F(EngineFaultsTest, LateFetchIsComputedInstead) {
  const std::unique_ptr<BlockedFetch> blocked = RunWithBlockedFetch(NoPool());
  EXPECT_EQ(blocked->worker->Counter("fetch_timeouts"), 1u);
}

TEST_F(EngineFaultsTest, ZeroFetchBudgetNeverWaits) {
  EngineOptions options = NoPool();
  options.cache.fetch_budget = absl::ZeroDuration();
  absl::Notification release;
  cache_->before_fetch = [&] { release.WaitForNotification(); };
  TestWorker worker(FaultyDir(), options, cache_);
  ExpectComputed(*worker.Run(request_));
  release.Notify();
  worker.Stop();
}

TEST_F(EngineFaultsTest, BlockedFetchThreadsDelayNoRequest) {
  EngineOptions options = NoPool();
  options.max_running = 1;  // one fetch thread, and one fetch may wait for it
  const std::unique_ptr<BlockedFetch> blocked = RunWithBlockedFetch(options);
  for (int i = 0; i < 3; ++i) ExpectComputed(*blocked->worker->Run(request_));
  EXPECT_EQ(blocked->worker->Counter("fetch_timeouts"), 4u);
}

TEST_F(EngineFaultsTest, CacheExceptionIsAMiss) {
  TestWorker worker(FaultyDir(), NoPool(), cache_);
  cache_->before_fetch = [] { throw std::runtime_error("on fire"); };
  cache_->before_publish = [] { throw std::runtime_error("on fire"); };
  const auto run = worker.Run(request_);
  ExpectComputed(*run);
  EXPECT_THAT(run->outcome.boundaries, IsEmpty());
  EXPECT_THAT(run->outcome.note, HasSubstr("on fire"));
}

struct Lie {
  const char* name;
  void (*tell)(FetchOutcome*);
};

class WrongCacheAnswerTest : public EngineFaultsTest, public testing::WithParamInterface<Lie> {};

TEST_P(WrongCacheAnswerTest, WrongCacheAnswerIsComputedInstead) {
  TestWorker worker(FaultyDir(), NoPool(), cache_);
  cache_->mangle = GetParam().tell;
  ExpectComputed(*worker.Run(request_));
  EXPECT_EQ(worker.Counter("fetches_refused"), 1u);
  cache_->mangle = nullptr;
  EXPECT_GT(worker.Run(request_)->started.cached_tokens, 0u);
}

std::shared_ptr<KvObject> Changed(FetchOutcome* outcome) {
  auto copy = std::make_shared<KvObject>(*outcome->objects.back());
  outcome->objects.back() = copy;
  return copy;
}

INSTANTIATE_TEST_SUITE_P(
    AllLies, WrongCacheAnswerTest,
    testing::Values(
        Lie{"MissingObject", [](FetchOutcome* o) { o->objects.pop_back(); }},
        Lie{"NoObjects", [](FetchOutcome* o) { o->objects.clear(); }},
        Lie{"ObjectTwice", [](FetchOutcome* o) { o->objects.push_back(o->objects.back()); }},
        Lie{"NullObject", [](FetchOutcome* o) { o->objects.front() = nullptr; }},
        Lie{"TooShort", [](FetchOutcome* o) { Changed(o)->size_bytes -= 64; }},
        Lie{"TooLong", [](FetchOutcome* o) { Changed(o)->size_bytes += 64; }},
        Lie{"NoBytes", [](FetchOutcome* o) { Changed(o)->bytes = nullptr; }},
        Lie{"NoDigests", [](FetchOutcome* o) { Changed(o)->slice_digests.clear(); }},
        Lie{"OtherGroup", [](FetchOutcome* o) { Changed(o)->id.group = LayerGroup::kGlobal; }},
        Lie{"Misaligned",
            [](FetchOutcome* o) {
              auto object = Changed(o);
              auto memory = AllocateAligned(object->size_bytes + 1);
              object->bytes = std::shared_ptr<std::byte[]>(memory, memory.get() + 1);
            }},
        Lie{"BoundaryAbovePrompt", [](FetchOutcome* o) { o->usable_tokens = 96; }},
        Lie{"BoundaryBetweenCuts", [](FetchOutcome* o) { o->usable_tokens = 63; }},
        Lie{"OtherBoundary", [](FetchOutcome* o) { o->usable_tokens = 48; }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(EngineFaultsTest, InvalidFetchFallsBackToPool) {
  EngineOptions options = TestWorker::SmallOptions();
  TestWorker worker(FaultyDir(), options, cache_);
  worker.Run(Request(Prompt(40, 1)));  // puts 32 tokens into the pool
  cache_->mangle = [](FetchOutcome* outcome) { outcome->objects.clear(); };
  const auto run = worker.Run(request_);
  EXPECT_EQ(run->started.cached_tokens, 32u);
  EXPECT_EQ(run->started.source_tier, Tier::kWorker);
  EXPECT_EQ(run->finished.first_logits_sha256, cold_->finished.first_logits_sha256);
}

TEST_F(EngineFaultsTest, FullStagingAreaSkipsPublish) {
  EngineOptions options = TestWorker::SmallOptions();
  options.memory.staging_bytes = 100;
  TestWorker worker(FaultyDir(), options);
  const auto run = worker.Run(request_);
  ExpectComputed(*run);
  EXPECT_THAT(run->outcome.boundaries, IsEmpty());
  EXPECT_EQ(worker.Counter("staging_skips"), 1u);
  EXPECT_EQ(run->outcome.note, "1 restore points were not saved: staging-bytes is full");
  EXPECT_EQ(worker->Stats().staged_bytes, 0u);
}

TEST_F(EngineFaultsTest, SlowPublishDelaysNoRequest) {
  absl::Notification release;
  auto slow = std::make_shared<MemoryPrefixCache>(TestWorker(FaultyDir(), NoPool())->layout());
  slow->before_publish = [&] { release.WaitForNotification(); };
  TestWorker worker(FaultyDir(), NoPool(), slow);
  Collector first, second;
  worker.Submit(Request(Prompt(75)), &first);
  worker.Submit(Request(Prompt(75, 9)), &second);
  first.WaitEnd();
  second.WaitEnd();
  EXPECT_GT(worker->Stats().staged_bytes, 0u);
  release.Notify();
  first.WaitPublished();
  second.WaitPublished();
  worker->Drain(absl::Now() + kHang);
  EXPECT_EQ(worker->Stats().staged_bytes, 0u);
  EXPECT_EQ(worker.Counter("publishes_stored"), 2u);
}

// Blocks the first fetch until the engine cancels it.
class StoppableCache : public MemoryPrefixCache {
 public:
  using MemoryPrefixCache::MemoryPrefixCache;
  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Duration timeout) override {
    if (entered.HasBeenNotified()) {
      return MemoryPrefixCache::Fetch(prefix, above_tokens, max_tokens, timeout);
    }
    absl::Notification stopped;
    const CallStop::Call call(prefix.stop, [&] { stopped.Notify(); });
    entered.Notify();
    stopped.WaitForNotification();
    return {};
  }
  absl::Notification entered;
};

TEST(CancelledFetchTest, CancelledFetchFreesItsThread) {
  const auto cache = std::make_shared<StoppableCache>(TestWorker(FaultyDir())->layout());
  EngineOptions options = NoPool();
  options.max_running = 1;  // also limits fetch threads to one
  TestWorker worker(FaultyDir(), options, cache);
  Collector collector;
  const auto handle = worker.Submit(Request(Prompt(40)), &collector);
  cache->entered.WaitForNotification();
  handle->Cancel();
  collector.WaitEnd();
  EXPECT_EQ(collector.error.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(worker.Run(Request(Prompt(40)))->error.ok());
  EXPECT_EQ(cache->fetches(), 1) << "only the next request may fetch";
}

}  // namespace
}  // namespace hearth
