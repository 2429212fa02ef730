// A request has the same result bits with the cache and without it.

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;

class EngineRestoreTest : public testing::TestWithParam<NamedGeometry> {
 protected:
  const std::string& dir() const { return ModelDir(GetParam().geometry); }
  static EngineOptions Options(uint64_t pool_bytes) {
    EngineOptions options = TestWorker::SmallOptions();
    options.dtype = GetParam().dtype;
    options.memory.pool_bytes = pool_bytes;
    return options;
  }
  // Runs the request on a worker without a cache.
  std::unique_ptr<Collector> Cold(EngineRequest request) {
    if (cold_ == nullptr) cold_ = std::make_unique<TestWorker>(dir(), Options(0), nullptr, false);
    request.cache = CacheMode::kOff;
    return cold_->Run(request);
  }
  void ExpectSame(const Collector& a, const Collector& b) {
    ASSERT_TRUE(a.error.ok()) << a.error;
    ASSERT_TRUE(b.error.ok()) << b.error;
    EXPECT_EQ(DigestHex(a.finished.first_logits_sha256), DigestHex(b.finished.first_logits_sha256));
    EXPECT_EQ(a.tokens, b.tokens);
  }

 private:
  std::unique_ptr<TestWorker> cold_;
};

// Further samples continue from a copy of the first sample's KV.
TEST_P(EngineRestoreTest, SampleEqualsRequestWithItsSeed) {
  EngineRequest request = Request(Prompt(75), {}, 40);
  request.sampling.temperature = 3;
  request.sampling.seed = 7;
  request.samples = 3;
  TestWorker worker(dir(), Options(0), nullptr, /*with_cache=*/false);
  std::vector<std::vector<int32_t>> answers(3);
  Collector run;
  EngineCallbacks callbacks = run.Callbacks();
  callbacks.on_token = [&](const SampledToken& token) {
    answers[token.sample].push_back(token.id);
    return true;
  };
  ASSERT_TRUE(worker->Submit(request, std::move(callbacks)).ok());
  run.WaitEnd();
  ASSERT_TRUE(run.error.ok()) << run.error;
  EXPECT_EQ(worker.Counter("computed_tokens"), 75u);
  request.samples = 1;
  for (uint32_t i = 0; i < 3; ++i) {
    request.sampling.seed = SeedOfSample(7, i);
    EXPECT_EQ(answers[i], Cold(request)->tokens) << i;
  }
}

TEST_P(EngineRestoreTest, RestoreAtEveryBoundaryEqualsUncachedRun) {
  TestWorker pooled(dir(), Options(kPoolBytes));
  TestWorker stored(dir(), Options(0), pooled.cache());
  const auto first = pooled.Run(Request(Prompt(75), {23, 50}));
  EXPECT_EQ(first->started.cached_tokens, 0u);
  EXPECT_THAT(first->outcome.boundaries, ElementsAre(23, 50, 64));
  for (uint32_t boundary : {23u, 50u, 64u}) {
    SCOPED_TRACE(boundary);
    const EngineRequest request = Request(ForkedPrompt(boundary, 90, 1, 7), {23, 50});
    const auto cold = Cold(request);
    EngineRequest read = request;
    read.cache = CacheMode::kRead;
    const auto warm = pooled.Run(read);
    EXPECT_EQ(warm->started.cached_tokens, boundary);
    EXPECT_EQ(warm->started.source_tier, Tier::kWorker);
    ExpectSame(*cold, *warm);
    const auto second = stored.Run(read);
    EXPECT_EQ(second->started.cached_tokens, boundary);
    EXPECT_EQ(second->started.source_tier, Tier::kHost);
    EXPECT_EQ(second->finished.computed_tokens, 90 - boundary);
    ExpectSame(*cold, *second);
  }
}

TEST_P(EngineRestoreTest, DeviceObjectsRestoreButAreNotPooled) {
  TestWorker worker(dir(), Options(kPoolBytes));
  worker.Run(Request(Prompt(75), {23, 50}));
  TestWorker lent(dir(), Options(kPoolBytes), worker.cache());
  worker.cache()->tier = Tier::kGpu;
  worker.cache()->mangle = [&](FetchOutcome* outcome) { worker.cache()->Lend(outcome); };
  for (uint32_t boundary : {23u, 50u, 64u}) {
    SCOPED_TRACE(boundary);
    const EngineRequest request = Request(ForkedPrompt(boundary, 90, 1, 7 + boundary), {23, 50});
    const auto cold = Cold(request);
    const auto warm = lent.Run(request);
    EXPECT_EQ(warm->started.cached_tokens, boundary);
    EXPECT_EQ(warm->started.source_tier, Tier::kGpu);
    EXPECT_THAT(warm->outcome.boundaries, ::testing::Contains(80)) << warm->outcome.note;
    ExpectSame(*cold, *warm);
  }
  EXPECT_EQ(lent.Counter("cached_tokens_gpu"), 23u + 50 + 64);
  EXPECT_EQ(worker.cache()->conflicts(), 0);
  EXPECT_EQ(lent.Counter("pool_inserts"), 0u)
      << "the pool must not keep objects in the store's memory";
  for (const PublishRequestSpec& spec : worker.cache()->published()) {
    for (const auto& object : spec.objects) {
      EXPECT_EQ(object->device_bytes, nullptr) << "a publish must not keep the store's lease";
    }
  }
}

TEST_P(EngineRestoreTest, OverwrittenDeviceObjectsAreComputed) {
  for (EngineOptions options : {Options(0), InvariantOptions()}) {
    options.memory.pool_bytes = 0;
    TestWorker worker(dir(), options), cold(dir(), options, nullptr, /*with_cache=*/false);
    worker.Run(Request(Prompt(75), {23, 50}));
    worker.cache()->mangle = [&](FetchOutcome* outcome) {
      worker.cache()->Lend(outcome);
      auto reused = std::make_shared<KvObject>(*outcome->objects.front());
      const std::shared_ptr<std::byte[]> other(new std::byte[reused->size_bytes]());
      reused->device_bytes = {other, other.get()};
      reused->check_device_bytes = [] { return absl::AbortedError("the store reused the range"); };
      outcome->objects.front() = std::move(reused);
    };
    const EngineRequest request = Request(ForkedPrompt(50, 90, 1, 7), {23, 50});
    const auto warm = worker.Run(request);
    EXPECT_EQ(warm->started.cached_tokens, 0u);
    EXPECT_EQ(worker.Counter("restore_failures"), 1u);
    ExpectSame(*cold.Run(request), *warm);
  }
}

TEST_P(EngineRestoreTest, ConcurrentRequestsDoNotAffectRestore) {
  TestWorker worker(dir(), Options(kPoolBytes));
  worker.Run(Request(Prompt(75), {23, 50}));
  std::vector<std::unique_ptr<Collector>> others;
  std::vector<std::shared_ptr<EngineRequestHandle>> handles;
  for (uint64_t seed : {11, 12, 13}) {
    others.push_back(std::make_unique<Collector>());
    handles.push_back(worker.Submit(Request(Prompt(60, seed), {}, 400), others.back().get()));
    others.back()->WaitFirstToken();
  }
  const EngineRequest request = Request(ForkedPrompt(64, 90, 1, 7), {23, 50}, 8);
  const auto warm = worker.Run(request);
  for (const auto& handle : handles) handle->Cancel();
  for (const auto& other : others) other->WaitEnd();
  EXPECT_EQ(warm->started.cached_tokens, 64u);
  ExpectSame(*Cold(request), *warm);
}

TEST_P(EngineRestoreTest, PromptBelowOneChunkIsReused) {
  EngineOptions options = Options(0);
  options.chunk_tokens = 128;
  TestWorker worker(dir(), options);
  TestWorker bare(dir(), options, nullptr, false);
  const auto first = worker.Run(Request(Prompt(110), {100}));
  EXPECT_THAT(first->outcome.boundaries, ElementsAre(100));
  for (size_t tokens : {101, 140, 300}) {
    SCOPED_TRACE(tokens);
    const EngineRequest request = Request(ForkedPrompt(100, tokens, 1, tokens), {100});
    const auto warm = worker.Run(request);
    EXPECT_EQ(warm->started.cached_tokens, 100u);
    ExpectSame(*bare.Run(request), *warm);
  }
  // Without the breakpoint, nothing shorter than a chunk is restored.
  EXPECT_EQ(worker.Run(Request(Prompt(140)))->started.cached_tokens, 0u);
}

TEST_P(EngineRestoreTest, CachedPromptRecomputesItsEnd) {
  TestWorker worker(dir(), Options(kPoolBytes));
  for (const auto& [tokens, breakpoints, cached] :
       {std::tuple<size_t, std::vector<uint32_t>, uint32_t>{64, {}, 48},
        {50, {30, 50}, 48},
        {33, {33}, 32}}) {
    SCOPED_TRACE(tokens);
    const EngineRequest request = Request(Prompt(tokens, tokens), breakpoints);
    const auto cold = worker.Run(request);
    EXPECT_EQ(cold->started.cached_tokens, 0u);
    const auto warm = worker.Run(request);
    EXPECT_EQ(warm->started.cached_tokens, cached);
    EXPECT_EQ(warm->started.matched_tokens, tokens);
    ExpectSame(*cold, *warm);
  }
}

TEST_P(EngineRestoreTest, VeryShortPromptsWork) {
  TestWorker worker(dir(), Options(kPoolBytes));
  for (size_t tokens : {1, 13}) {
    const EngineRequest request = Request(Prompt(tokens, 5));
    ExpectSame(*Cold(request), *worker.Run(request));
    ExpectSame(*Cold(request), *worker.Run(request));
  }
}

// A second prompt with the same beginning finds no restore point where it diverges, but stores one
// there. A third prompt restores from it.
TEST_P(EngineRestoreTest, SecondContinuationCreatesRestorePoint) {
  TestWorker worker(dir(), Options(0));
  worker.Run(Request(Prompt(200)));
  const auto second = worker.Run(Request(ForkedPrompt(100, 200, 1, 2)));
  EXPECT_EQ(second->started.cached_tokens, 0u);
  EXPECT_EQ(second->started.matched_tokens, 100u);
  EXPECT_THAT(second->outcome.boundaries, ElementsAre(96, 192));
  const EngineRequest request = Request(ForkedPrompt(100, 200, 1, 3));
  const auto third = worker.Run(request);
  EXPECT_EQ(third->started.cached_tokens, 96u);
  ExpectSame(*Cold(request), *third);
}

// Random prompts that share beginnings, with random cuts. A worker answers like a worker without a
// cache, for any content of its pool and of the store. Published bits are the same whether a worker
// computes them at once or continues from any restore point.
TEST_P(EngineRestoreTest, RandomSharedPrefixesKeepTheirBits) {
  TestWorker pooled(dir(), Options(kPoolBytes));
  TestWorker stored(dir(), Options(0), pooled.cache());
  TestWorker writer(dir(), Options(0), pooled.cache());
  std::mt19937_64 random(42);
  struct Member {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> cuts;
  };
  std::vector<Member> family = {{Prompt(120), {20}}};
  uint64_t restored = 0;
  for (int i = 0; i < 25; ++i) {
    SCOPED_TRACE(i);
    const Member& parent = family[random() % family.size()];
    const size_t fork = 1 + random() % parent.tokens.size();
    Member child{{parent.tokens.begin(), parent.tokens.begin() + fork}, {}};
    const std::vector<int32_t> tail = Prompt(1 + random() % 60, 100 + i);
    child.tokens.insert(child.tokens.end(), tail.begin(), tail.end());
    for (uint32_t cut : parent.cuts) {
      if (cut <= fork) child.cuts.push_back(cut);
    }
    if (random() % 2 == 0) child.cuts.push_back(child.tokens.size() - random() % tail.size());
    child.tokens.resize(std::min<size_t>(child.tokens.size(), 300));
    while (!child.cuts.empty() && child.cuts.back() > child.tokens.size()) child.cuts.pop_back();

    EngineRequest request = Request(child.tokens, child.cuts);
    const auto cold = Cold(request);
    const auto from_store = stored.Run(request);
    const auto from_pool = pooled.Run(request);
    ExpectSame(*cold, *from_store);
    ExpectSame(*cold, *from_pool);
    restored += from_store->started.cached_tokens + from_pool->started.cached_tokens;
    request.cache = CacheMode::kWrite;  // computes and publishes everything
    const auto written = writer.Run(request);
    EXPECT_EQ(written->started.cached_tokens, 0u);
    family.push_back(std::move(child));
  }
  EXPECT_EQ(pooled.cache()->conflicts(), 0);
  EXPECT_EQ(pooled.Counter("nondeterminism"), 0u);
  EXPECT_GT(restored, 1000u);
}

INSTANTIATE_TEST_SUITE_P(AllGeometries, EngineRestoreTest, testing::ValuesIn(Geometries()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth
