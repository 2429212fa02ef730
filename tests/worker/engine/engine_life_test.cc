// The life of a request: limits, cache modes, cancellation in every phase, deadlines, draining,
// sampling.

#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string& LivingDir() { return ModelDir(Geometries()[2].geometry); }

EngineOptions OnePlace(uint32_t max_queued = 8) {
  EngineOptions options = TestWorker::SmallOptions();
  options.max_running = 1;
  options.max_queued = max_queued;
  return options;
}

// Blocks fetches until Release(), and signals when a fetch begins. The state is shared, because
// abandoned fetches may outlive the Gate.
class Gate {
 public:
  explicit Gate(MemoryPrefixCache* cache) {
    cache->before_fetch = [state = state_] {
      if (!state->entered.HasBeenNotified()) state->entered.Notify();
      state->released.WaitForNotification();
    };
  }
  void WaitEntered() { state_->entered.WaitForNotification(); }
  void Release() { state_->released.Notify(); }

 private:
  struct State {
    absl::Notification entered, released;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(EngineLifecycleTest, TooLongRequestIsNotQueued) {
  TestWorker worker(LivingDir());
  const auto refused = worker->Submit(Request(Prompt(600)), {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(worker->Stats().queued, 0u);
}

TEST(EngineLifecycleTest, FullQueueReturnsResourceExhausted) {
  TestWorker worker(LivingDir(), OnePlace(1));
  Gate gate(worker.cache().get());
  Collector running, waiting;
  worker.Submit(Request(Prompt(40)), &running);
  gate.WaitEntered();
  worker.Submit(Request(Prompt(40)), &waiting);
  const auto refused = worker->Submit(Request(Prompt(40)), {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_queued is 1"));
  gate.Release();
  running.WaitEnd();
  waiting.WaitEnd();
  EXPECT_TRUE(waiting.error.ok());
  EXPECT_EQ(worker.Counter("requests_refused"), 1u);
}

TEST(EngineLifecycleTest, FullQueueDropsLargestTenantsNewest) {
  TestWorker worker(LivingDir(), OnePlace(2));
  Gate gate(worker.cache().get());
  Collector running, first, newest, other;
  EngineRequest request = Request(Prompt(40));
  request.tenant = "many";
  worker.Submit(request, &running);
  gate.WaitEntered();
  worker.Submit(request, &first);
  worker.Submit(request, &newest);
  request.tenant = "few";
  worker.Submit(request, &other);
  newest.WaitEnd();
  EXPECT_EQ(newest.error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(newest.error.message()), HasSubstr("a tenant with fewer requests"));
  gate.Release();
  for (Collector* answered : {&running, &other, &first}) {
    answered->WaitEnd();
    EXPECT_TRUE(answered->error.ok()) << answered->error;
  }
  EXPECT_EQ(worker.Counter("requests_refused"), 0u);
}

TEST(EngineLifecycleTest, BusyTenantDoesNotBlockAnother) {
  EngineOptions options = InvariantOptions();
  options.max_running = 4;
  options.max_queued = 8;
  TestWorker worker(LivingDir(), options, nullptr, /*with_cache=*/false);
  EngineRequest many = Request(Prompt(40), {}, 20), few = Request(Prompt(40, 2));
  many.tenant = "many";
  few.tenant = "few";
  EngineCallbacks ignored;
  ignored.on_token = [](const SampledToken&) { return true; };
  ignored.on_finished = [](const FinishedInfo&) {};
  ignored.on_error = [](const absl::Status&) {};
  ignored.on_published = [](const PublishOutcome&) {};
  int refused = 0;
  for (int round = 0; round < 5; ++round) {
    // The engine is blocked until all requests are submitted, so the queue becomes full.
    const auto submitted = std::make_shared<absl::Notification>();
    ignored.on_started = [submitted](const StartedInfo&) { submitted->WaitForNotification(); };
    for (int i = 0; i < 100; ++i) refused += worker->Submit(many, ignored).ok() ? 0 : 1;
    Collector other;
    worker.Submit(few, &other);  // aborts the test if the request is refused
    submitted->Notify();
    other.WaitEnd();
    EXPECT_TRUE(other.error.ok()) << other.error;
  }
  EXPECT_GT(refused, 0) << "the queue was full";
}

TEST(EngineLifecycleTest, CancelledQueuedRequestFreesQueue) {
  TestWorker worker(LivingDir(), OnePlace(1));
  Gate gate(worker.cache().get());
  Collector running, waiting, next;
  worker.Submit(Request(Prompt(40)), &running);
  gate.WaitEntered();
  worker.Submit(Request(Prompt(40)), &waiting)->Cancel();
  waiting.WaitEnd();
  EXPECT_EQ(waiting.error.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(waiting.was_started());
  worker.Submit(Request(Prompt(40)), &next);  // aborts the test if the queue is still full
  gate.Release();
  next.WaitEnd();
}

TEST(EngineLifecycleTest, CancelledFetchFreesSlotAtOnce) {
  EngineOptions options = OnePlace();
  TestWorker worker(LivingDir(), options);
  Gate gate(worker.cache().get());
  Collector fetching, next;
  auto handle = worker.Submit(Request(Prompt(40)), &fetching);
  gate.WaitEntered();
  handle->Cancel();
  fetching.WaitEnd();
  EXPECT_EQ(fetching.error.code(), absl::StatusCode::kCancelled);
  EngineRequest uncached = Request(Prompt(40));
  uncached.cache = CacheMode::kOff;
  worker.Submit(uncached, &next);
  next.WaitEnd();  // although the first fetch is still blocked
  EXPECT_TRUE(next.error.ok());
  gate.Release();
  handle->Cancel();  // no effect after the end
}

// Makes a request wait until `released`, as for another request's computation; then reports more
// stored tokens.
class WaitingCache : public MemoryPrefixCache {
 public:
  using MemoryPrefixCache::MemoryPrefixCache;
  LeaseOutcome Lease(const PrefixRequest&, uint32_t above_tokens, uint32_t, const LeaseTerms&,
                     absl::Duration) override {
    entered.Notify();
    released.WaitForNotification();
    LeaseOutcome turn;
    turn.usable_tokens = above_tokens + 16;
    return turn;
  }
  absl::Notification entered, released;
};

TEST(EngineLifecycleTest, CancelledLeaseWaitFetchesNoMore) {
  EngineOptions options = OnePlace();
  options.cache.compute.min_tokens = 1;
  const auto cache = std::make_shared<WaitingCache>(TestWorker(LivingDir())->layout());
  TestWorker worker(LivingDir(), options, cache);
  Collector collector;
  const auto handle = worker.Submit(Request(Prompt(40)), &collector);
  cache->entered.WaitForNotification();
  handle->Cancel();
  collector.WaitEnd();
  cache->released.Notify();
  worker.Stop();  // waits until calls to the cache end
  EXPECT_EQ(cache->fetches(), 1);
}

TEST(EngineLifecycleTest, CancelledPrefillStopsWithinStep) {
  TestWorker worker(LivingDir(), OnePlace());
  std::shared_ptr<EngineRequestHandle> handle;
  absl::Notification submitted;
  Collector collector;
  EngineCallbacks callbacks = collector.Callbacks();
  callbacks.on_started = [&](const StartedInfo&) {
    submitted.WaitForNotification();
    handle->Cancel();
  };
  handle = *worker->Submit(Request(Prompt(400)), callbacks);
  submitted.Notify();
  collector.WaitEnd();
  EXPECT_EQ(collector.error.code(), absl::StatusCode::kCancelled);
  EXPECT_LE(worker.Counter("prefill_steps"), 1u);
  EXPECT_EQ(worker->Stats().running, 0u);
  EXPECT_EQ(worker->Stats().staged_bytes, 0u);
  EXPECT_TRUE(worker.Run(Request(Prompt(20)))->error.ok());
}

TEST(EngineLifecycleTest, CancelledDecodeStopsWithinStep) {
  TestWorker worker(LivingDir(), OnePlace());
  Collector collector, next;
  std::shared_ptr<EngineRequestHandle> handle;
  absl::Notification submitted;
  collector.on_token = [&](size_t number) {
    submitted.WaitForNotification();
    if (number == 2) handle->Cancel();
    return true;
  };
  handle = worker.Submit(Request(Prompt(40), {}, 400), &collector);
  submitted.Notify();
  collector.WaitEnd();
  EXPECT_EQ(collector.error.code(), absl::StatusCode::kCancelled);
  EXPECT_LE(collector.tokens.size(), 4u);
  worker.Submit(Request(Prompt(20)), &next);
  next.WaitEnd();
  EXPECT_TRUE(next.error.ok());
}

TEST(EngineLifecycleTest, DeadlineEndsFetchingAndQueuedRequests) {
  TestWorker worker(LivingDir(), OnePlace());
  Gate gate(worker.cache().get());
  Collector fetching, queued;
  EngineRequest request = Request(Prompt(40));
  request.deadline = absl::Now() + absl::Milliseconds(30);
  worker.Submit(request, &fetching);
  worker.Submit(request, &queued);
  fetching.WaitEnd();
  queued.WaitEnd();
  EXPECT_EQ(fetching.error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queued.error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(worker.Counter("requests_expired"), 2u);
  gate.Release();
}

TEST(EngineLifecycleTest, DrainFinishesRunningAndRefusesNew) {
  TestWorker worker(LivingDir(), OnePlace());
  Collector first, second;
  worker.Submit(Request(Prompt(40)), &first);
  worker.Submit(Request(Prompt(40, 2)), &second);
  worker->Drain(absl::Now() + kHang);
  first.WaitPublished();
  second.WaitPublished();
  EXPECT_TRUE(first.error.ok());
  EXPECT_THAT(worker.cache()->BoundariesOf("default"), ElementsAre(32, 32));
  EXPECT_EQ(worker->Submit(Request(Prompt(40)), {}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(EngineLifecycleTest, DrainTimeoutEndsRunningRequests) {
  TestWorker worker(LivingDir(), OnePlace());
  Gate gate(worker.cache().get());
  Collector collector;
  worker.Submit(Request(Prompt(40)), &collector);
  gate.WaitEntered();
  worker->Drain(absl::Now());
  collector.WaitEnd();
  EXPECT_EQ(collector.error.code(), absl::StatusCode::kUnavailable);
  gate.Release();
}

TEST(EngineLifecycleTest, DestroyedEngineEndsItsRequests) {
  auto worker = std::make_unique<TestWorker>(LivingDir(), OnePlace());
  const std::shared_ptr<MemoryPrefixCache> cache = worker->cache();
  Gate gate(cache.get());
  Collector running, waiting;
  auto handle = worker->Submit(Request(Prompt(40)), &running);
  worker->Submit(Request(Prompt(40)), &waiting);
  gate.WaitEntered();
  std::thread release([&] {
    running.WaitEnd();
    gate.Release();
  });
  worker.reset();
  release.join();
  waiting.WaitEnd();
  EXPECT_FALSE(running.error.ok());
  EXPECT_FALSE(waiting.error.ok());
  handle->Cancel();
}

TEST(EngineLifecycleTest, FinishReasonsAreReported) {
  TestWorker worker(LivingDir());
  const auto by_length = worker.Run(Request(Prompt(40), {}, 20));
  EXPECT_EQ(by_length->finished.reason, FinishReason::kLength);
  EXPECT_EQ(by_length->finished.generated_tokens, 20u);
  EXPECT_EQ(by_length->tokens.size(), 20u);

  Collector stopped;
  stopped.on_token = [](size_t number) { return number < 2; };
  worker.Submit(Request(Prompt(40), {}, 20), &stopped);
  stopped.WaitEnd();
  EXPECT_EQ(stopped.finished.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens.size(), 3u);

  // At a high temperature, token 1 (the end token) is soon sampled from the 160 tokens.
  EngineRequest request = Request(Prompt(40), {}, 400);
  request.ignore_eos = false;
  request.sampling.temperature = 100;
  request.sampling.seed = 3;
  const auto by_eos = worker.Run(request);
  EXPECT_EQ(by_eos->finished.reason, FinishReason::kEos);
  EXPECT_EQ(by_eos->tokens.size(), by_eos->finished.generated_tokens);
  for (int32_t token : by_eos->tokens) EXPECT_NE(token, 1);
}

TEST(EngineLifecycleTest, SeedDeterminesSampledTokens) {
  TestWorker worker(LivingDir());
  EngineRequest request = Request(Prompt(40), {}, 30);
  request.sampling.temperature = 5;
  request.sampling.seed = 7;
  const auto first = worker.Run(request);
  // This run restores the prefix from the cache.
  EXPECT_EQ(worker.Run(request)->tokens, first->tokens);
  request.sampling.seed = 8;
  EXPECT_NE(worker.Run(request)->tokens, first->tokens);
}

TEST(EngineLifecycleTest, RepeatedPrefillComputesNothing) {
  TestWorker worker(LivingDir());
  const EngineRequest request = Request(Prompt(75), {50}, 0);
  const auto first = worker.Run(request);
  EXPECT_EQ(first->finished.computed_tokens, 64u);  // the last 11 tokens end at no boundary
  EXPECT_THAT(first->outcome.boundaries, ElementsAre(50, 64));
  EXPECT_EQ(first->finished.first_logits_sha256, Digest{});
  const auto second = worker.Run(request);
  EXPECT_EQ(second->finished.computed_tokens, 0u);
  EXPECT_EQ(second->started.cached_tokens, 64u);
  EXPECT_EQ(second->outcome.published_tokens, 64u);
  TestWorker other(LivingDir(), TestWorker::SmallOptions(), worker.cache());
  EXPECT_EQ(other.Run(request)->finished.computed_tokens, 0u);
}

TEST(EngineLifecycleTest, PrefillEndingAtBreakpointIsCached) {
  TestWorker worker(LivingDir());
  const EngineRequest request = Request(Prompt(50), {50}, 0);
  EXPECT_EQ(worker.Run(request)->finished.computed_tokens, 50u);
  const auto second = worker.Run(request);
  EXPECT_EQ(second->started.cached_tokens, 50u);
  EXPECT_EQ(second->finished.computed_tokens, 0u);
}

TEST(EngineLifecycleTest, CacheModeControlsReadsAndWrites) {
  TestWorker worker(LivingDir());
  EngineRequest request = Request(Prompt(40));
  request.cache = CacheMode::kOff;
  worker.Run(request);
  request.cache = CacheMode::kRead;
  EXPECT_EQ(worker.Run(request)->started.cached_tokens, 0u);
  EXPECT_THAT(worker.cache()->BoundariesOf("default"), IsEmpty());
  EXPECT_EQ(worker->Stats().pool_bytes, 0u);
  request.cache = CacheMode::kWrite;
  EXPECT_EQ(worker.Run(request)->started.cached_tokens, 0u);
  EXPECT_THAT(worker.cache()->BoundariesOf("default"), ElementsAre(32));
  EXPECT_EQ(worker.Run(request)->started.cached_tokens, 0u);
  request.cache = CacheMode::kRead;
  EXPECT_EQ(worker.Run(request)->started.cached_tokens, 32u);
  request.cache = CacheMode::kOff;
  EXPECT_EQ(worker.Run(request)->started.cached_tokens, 0u);
}

TEST(EngineLifecycleTest, TenantsDoNotSharePrefixes) {
  TestWorker worker(LivingDir());
  EngineRequest request = Request(Prompt(40));
  request.tenant = "a";
  worker.Run(request);
  request.tenant = "b";
  const auto other = worker.Run(request);
  EXPECT_EQ(other->started.cached_tokens, 0u);
  EXPECT_EQ(other->started.matched_tokens, 0u);
}

TEST(EngineLifecycleTest, FullPoolHitSkipsStoreFetch) {
  TestWorker worker(LivingDir());
  worker.Run(Request(Prompt(40)));
  const int fetches = worker.cache()->fetches();
  worker.Run(Request(Prompt(40)));  // the pool has all tokens that can be restored
  EXPECT_EQ(worker.cache()->fetches(), fetches);
  worker.Run(Request(Prompt(75)));
  EXPECT_EQ(worker.cache()->fetches(), fetches + 1);
  EXPECT_EQ(worker.cache()->last_above_tokens(), 32u);
}

TEST(EngineLifecycleTest, EmptiedStoreIsRefilledFromPool) {
  TestWorker worker(LivingDir());
  worker.Run(Request(Prompt(40)));
  worker.cache()->Clear();
  const auto again = worker.Run(Request(Prompt(40)));
  EXPECT_EQ(again->started.source_tier, Tier::kWorker);
  EXPECT_THAT(again->outcome.boundaries, ElementsAre(32));
  EXPECT_THAT(worker.cache()->BoundariesOf("default"), ElementsAre(32));
}

TEST(EngineLifecycleTest, TokensAfterLastBoundaryAreUnpublished) {
  TestWorker worker(LivingDir());
  worker.Run(Request(Prompt(75), {20, 70}));
  const auto published = worker.cache()->published();
  ASSERT_EQ(published.size(), 1u);
  EXPECT_EQ(published[0].prefix.token_ids.size(), 70u);
  EXPECT_THAT(published[0].prefix.cuts, ElementsAre(20, 70));
}

TEST(EngineLifecycleTest, PoolServesWithoutStore) {
  TestWorker worker(LivingDir(), TestWorker::SmallOptions(), nullptr, false);
  const auto cold = worker.Run(Request(Prompt(40)));
  EXPECT_THAT(cold->outcome.note, HasSubstr("no store"));
  const auto warm = worker.Run(Request(Prompt(40)));
  EXPECT_EQ(warm->started.cached_tokens, 32u);
  EXPECT_EQ(warm->finished.first_logits_sha256, cold->finished.first_logits_sha256);
}

TEST(EngineLifecycleTest, CountersMatchTheRequests) {
  TestWorker worker(LivingDir());
  worker.Run(Request(Prompt(40), {}, 3));
  worker.Run(Request(Prompt(40), {}, 3));
  EXPECT_EQ(worker.Counter("requests"), 2u);
  EXPECT_EQ(worker.Counter("requests_finished"), 2u);
  EXPECT_EQ(worker.Counter("prompt_tokens"), 80u);
  EXPECT_EQ(worker.Counter("computed_tokens"), 48u);
  EXPECT_EQ(worker.Counter("cached_tokens_worker"), 32u);
  EXPECT_EQ(worker.Counter("generated_tokens"), 6u);
  EXPECT_EQ(worker.Counter("decode_steps"), 4u);
  EXPECT_EQ(worker.Counter("prefill_steps"), 4u);
  EXPECT_EQ(worker.Counter("pool_hits"), 1u);
}

TEST(EngineLifecycleTest, FingerprintIncludesChunkAndClass) {
  EngineOptions options = TestWorker::SmallOptions();
  TestWorker worker(LivingDir(), options), same(LivingDir(), options);
  EXPECT_TRUE(Compare(worker->fingerprint(), same->fingerprint()).empty());
  options.chunk_tokens = 32;
  TestWorker chunk(LivingDir(), options);
  std::vector<std::string> fields;
  for (const auto& d : Compare(worker->fingerprint(), chunk->fingerprint())) {
    fields.push_back(d.field);
  }
  EXPECT_THAT(fields, ElementsAre("chunk_tokens", "canary_sha256"));
  EXPECT_TRUE(worker->fingerprint().Layout().ok());
  options.exactness = ExactnessChoice::kPortable;
  TestWorker portable(LivingDir(), options);
  EXPECT_FALSE(Compare(portable->fingerprint(), chunk->fingerprint()).empty());
}

}  // namespace
}  // namespace hearth
