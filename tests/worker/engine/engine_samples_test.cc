// Several answers to one prompt: the prompt is computed once, the answers share its memory, and
// each answer equals that of a separate request.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

const std::string& SamplesDir() { return ModelDir(Geometries()[1].geometry); }

EngineRequest Drawn(uint32_t samples, uint32_t prompt = 75, uint32_t answer = 40) {
  EngineRequest request = Request(Prompt(prompt), {}, answer);
  request.sampling.temperature = 3;
  request.sampling.seed = 7;
  request.samples = samples;
  return request;
}

using Answers = std::map<uint32_t, std::vector<int32_t>>;  // tokens by sample number

struct Sampled {
  Collector run;
  Answers answers;
  std::function<bool(uint32_t sample, size_t number)> on_token;

  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(TestWorker* worker,
                                                              const EngineRequest& request) {
    EngineCallbacks callbacks = run.Callbacks(request.cache == CacheMode::kDefault);
    callbacks.on_token = [this, inner = callbacks.on_token](const SampledToken& token) {
      answers[token.sample].push_back(token.id);
      inner(token);
      return on_token == nullptr || on_token(token.sample, answers[token.sample].size() - 1);
    };
    return (*worker)->Submit(request, std::move(callbacks));
  }
};

class EngineSamplesTest : public testing::TestWithParam<bool> {
 protected:
  static EngineOptions Options() {
    return GetParam() ? InvariantOptions() : TestWorker::SmallOptions();
  }
};

TEST_P(EngineSamplesTest, SamplesEqualRequestsWithTheirSeeds) {
  TestWorker worker(SamplesDir(), Options());
  Sampled four;
  EngineRequest hashed = Drawn(4);
  hashed.hash_logits = true;
  ASSERT_TRUE(four.Submit(&worker, hashed).ok());
  four.run.WaitAll();
  ASSERT_TRUE(four.run.error.ok()) << four.run.error;
  EXPECT_EQ(worker.Counter("computed_tokens"), 75u);
  EXPECT_EQ(worker.Counter("generated_tokens"), 160u);
  EXPECT_EQ(worker.Counter("requests_finished"), 1u);
  ASSERT_EQ(four.run.finished.samples.size(), 4u);
  EXPECT_EQ(four.run.finished.generated_tokens, 160u);
  TestWorker alone(SamplesDir(), Options(), nullptr, /*with_cache=*/false);
  for (uint32_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(four.run.finished.samples[i].generated_tokens, 40u);
    EngineRequest one = Drawn(1);
    one.sampling.seed = SeedOfSample(7, i);
    one.hash_logits = true;
    const auto run = alone.Run(one);
    EXPECT_EQ(four.answers[i], run->tokens);
    EXPECT_EQ(four.run.finished.samples[i].logits_sha256, run->finished.samples[0].logits_sha256);
    EXPECT_EQ(four.run.finished.first_logits_sha256, run->finished.first_logits_sha256);
    for (uint32_t j = 0; j < i; ++j) EXPECT_NE(four.answers[i], four.answers[j]);
  }
  Sampled again;
  ASSERT_TRUE(again.Submit(&worker, Drawn(4)).ok());
  again.run.WaitAll();
  EXPECT_EQ(again.answers, four.answers);
  EXPECT_EQ(worker->Stats().running, 0u);
}

TEST_P(EngineSamplesTest, StoppedSampleLeavesOthersRunning) {
  TestWorker worker(SamplesDir(), Options());
  for (const uint32_t stopped : {0u, 2u}) {
    for (const size_t last : {0u, 9u}) {
      Sampled three;
      three.on_token = [&](uint32_t sample, size_t number) {
        return sample != stopped || number < last;
      };
      ASSERT_TRUE(three.Submit(&worker, Drawn(3)).ok());
      three.run.WaitAll();
      ASSERT_TRUE(three.run.error.ok()) << three.run.error;
      for (uint32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(three.answers[i].size(), i == stopped ? last + 1 : 40u);
        EXPECT_EQ(three.run.finished.samples[i].reason,
                  i == stopped ? FinishReason::kStop : FinishReason::kLength);
      }
    }
  }
}

TEST_P(EngineSamplesTest, CancelEndsAllSamplesOnce) {
  TestWorker worker(SamplesDir(), Options());
  Sampled three;
  std::shared_ptr<EngineRequestHandle> handle;
  absl::Notification submitted;
  three.on_token = [&](uint32_t sample, size_t number) {
    submitted.WaitForNotification();
    if (sample == 1 && number == 9) handle->Cancel();
    return sample != 0 || number < 3;
  };
  auto taken = three.Submit(&worker, Drawn(3, 75, 400));
  ASSERT_TRUE(taken.ok());
  handle = *taken;
  submitted.Notify();
  three.run.WaitEnd();
  EXPECT_EQ(three.run.error.code(), absl::StatusCode::kCancelled);
  worker->Drain(absl::InfiniteFuture());
  EXPECT_EQ(worker.Counter("requests_cancelled"), 1u);
  EXPECT_EQ(worker.Counter("requests_finished"), 0u);
  EXPECT_EQ(worker->Stats().running, 0u);
}

TEST_P(EngineSamplesTest, TooManySamplesAreRefused) {
  EngineOptions options = Options();
  options.max_running = 3;
  TestWorker worker(SamplesDir(), options);
  const absl::Status refused = worker->Submit(Drawn(4), {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 3, the worker's --max-running"));
  options.model_dir = SamplesDir();
  options.max_running = kMaxRunning;
  EXPECT_TRUE(options.Validate().ok());
  options.max_running += 1;  // one more than fits into a step
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("in [0, 512]; got 513"));
  options.max_running = 8;
  options.step_tokens = 15;
  EXPECT_THAT(std::string(options.Validate().message()),
              HasSubstr("must be 0 or in [16, 512]; got 15"));
}

TEST_P(EngineSamplesTest, ExactnessClassSetsDefaultMaxRunning) {
  TestWorker worker(SamplesDir(), Options(), nullptr, /*with_cache=*/false);
  const uint32_t places = GetParam() ? 16 : 8;
  EXPECT_EQ(Options().PlacesOf(worker->layout().exactness), places);
  EXPECT_THAT(worker->notes(),
              testing::Contains("max-running: " + std::to_string(places) + " sequences at a time"));
  // The first tokens block the engine until all requests are submitted.
  std::vector<std::unique_ptr<Collector>> runs;
  absl::Notification submitted;
  uint32_t most = 0;
  for (uint32_t run = 0; run <= places; ++run) {
    runs.push_back(std::make_unique<Collector>());
    runs.back()->on_token = [&](size_t) {
      submitted.WaitForNotification();
      most = std::max(most, worker->Stats().running);
      return true;
    };
    worker.Submit(Request(Prompt(20, run + 1), {}, 40), runs.back().get());
  }
  submitted.Notify();
  for (auto& run : runs) run->WaitEnd();
  EXPECT_EQ(most, places) << "one request must wait";
  EngineRequest more = Drawn(1);
  more.samples = places + 1;
  const absl::Status refused = worker->Submit(more, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(GetParam() ? "in [1, 16]" : "at most 8"));
}

INSTANTIATE_TEST_SUITE_P(Classes, EngineSamplesTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Invariant" : "Exact"; });

// Samples share the prompt's blocks, except its last, incomplete block. Exactly this memory
// suffices.
TEST(EngineSamplesMemoryTest, SamplesShareTheirPromptBlocks) {
  TestWorker any(SamplesDir(), InvariantOptions(), nullptr, /*with_cache=*/false);
  Sampled wanted;
  ASSERT_TRUE(wanted.Submit(&any, Drawn(4, 331)).ok());
  wanted.run.WaitAll();
  const uint64_t chunk = ChunkBytes(any->layout());
  EngineOptions options = InvariantOptions();
  options.memory.pool_bytes = 0;
  options.memory.kv_bytes =
      (24 + 3 * 4) * chunk;  // 24 chunks hold 371 tokens; each other sample needs its last 4 chunks
  TestWorker worker(SamplesDir(), options, nullptr, /*with_cache=*/false);
  Sampled four, next;
  uint64_t most = 0;
  four.on_token = [&](uint32_t, size_t) {
    most = std::max(most, worker->Stats().kv_used_bytes);
    return true;
  };
  ASSERT_TRUE(four.Submit(&worker, Drawn(4, 331)).ok());
  ASSERT_TRUE(next.Submit(&worker, Drawn(4, 331)).ok());
  four.run.WaitAll();
  next.run.WaitAll();
  ASSERT_TRUE(four.run.error.ok() && next.run.error.ok()) << four.run.error << next.run.error;
  EXPECT_EQ(four.answers, wanted.answers);
  EXPECT_EQ(next.answers, wanted.answers);
  EXPECT_LE(most, options.memory.kv_bytes);
  EXPECT_EQ(worker->Stats().kv_used_bytes, 0u);
  EXPECT_LE(four.run.finished.kv_bytes, most) << "shared bytes count once";
  const uint64_t row = chunk / 16;
  Sampled one;
  ASSERT_TRUE(one.Submit(&any, Drawn(1, 331)).ok());
  one.run.WaitAll();
  // Each of the other three samples holds the rows after the prompt's 20 whole chunks.
  EXPECT_EQ(four.run.finished.kv_bytes, one.run.finished.kv_bytes + 3 * (331 + 39 - 320) * row);
  // One byte too little. Needed: 22 chunks for the prompt and a chunk of an answer, the last two
  // chunks of each other sample, and five local chunks for a step.
  options.memory.kv_bytes = (22 + 3 * 2) * any->layout().ObjectBytes(16, LayerGroup::kGlobal) +
                            (5 + 3 * 2) * any->layout().ObjectBytes(16, LayerGroup::kLocal) - 1;
  TestWorker small(SamplesDir(), options, nullptr, /*with_cache=*/false);
  Sampled refused;
  ASSERT_TRUE(refused.Submit(&small, Drawn(4, 331)).ok());
  refused.run.WaitEnd();
  EXPECT_EQ(refused.run.error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.run.error.message()), HasSubstr("4 samples of 347 tokens"));
}

}  // namespace
}  // namespace hearth
