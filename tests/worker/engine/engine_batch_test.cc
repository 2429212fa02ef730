// Batched steps in class invariant: the other requests of a batch change no bit of a result, and a
// long prompt does not block decoding sequences.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

const std::string& BatchDir() { return ModelDir(Geometries()[1].geometry); }

// The tokens of a request's answer, with their log probabilities.
struct Answer {
  Collector run;
  std::vector<SampledToken> tokens;

  std::function<void()> on_token;

  void Submit(TestWorker* worker, const EngineRequest& request) {
    EngineCallbacks callbacks = run.Callbacks(request.cache == CacheMode::kDefault);
    callbacks.on_token = [this, inner = callbacks.on_token](const SampledToken& token) {
      tokens.push_back(token);
      if (on_token != nullptr) on_token();
      return inner(token);
    };
    ASSERT_TRUE((*worker)->Submit(request, std::move(callbacks)).ok());
  }
};

void ExpectEqual(const Answer& a, const Answer& b) {
  ASSERT_TRUE(a.run.error.ok() && b.run.error.ok()) << a.run.error << b.run.error;
  EXPECT_EQ(a.run.finished.first_logits_sha256, b.run.finished.first_logits_sha256);
  EXPECT_NE(a.run.finished.samples[0].logits_sha256, Digest{});
  EXPECT_NE(a.run.finished.samples[0].logits_sha256, a.run.finished.first_logits_sha256);
  EXPECT_EQ(a.run.finished.samples[0].logits_sha256, b.run.finished.samples[0].logits_sha256);
  ASSERT_EQ(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.tokens[i].id, b.tokens[i].id) << i;
    EXPECT_EQ(a.tokens[i].logprob, b.tokens[i].logprob) << i;
    ASSERT_EQ(a.tokens[i].top.size(), b.tokens[i].top.size());
    for (size_t j = 0; j < a.tokens[i].top.size(); ++j) {
      EXPECT_EQ(a.tokens[i].top[j].id, b.tokens[i].top[j].id);
      EXPECT_EQ(a.tokens[i].top[j].logprob, b.tokens[i].top[j].logprob);
    }
  }
}

EngineRequest SampledRequest(uint64_t number) {
  EngineRequest request = Request(Prompt(20 + 31 * number, number), {}, 10 + 3 * number);
  request.tenant = number % 3 == 0 ? "a" : "b";
  request.hash_logits = true;
  request.sampling.logprobs = 3;
  request.sampling.report_logprobs = true;
  if (number % 2 == 0) {
    request.sampling.temperature = 2;
    request.sampling.seed = number;
  }
  return request;
}

TEST(EngineBatchTest, BatchedRequestsEqualSingleRequests) {
  constexpr uint64_t kRequests = 8;
  EngineOptions options = InvariantOptions();
  options.speculate = 0;  // with guessing, the number of steps would depend on the batch
  TestWorker alone(BatchDir(), options, nullptr, /*with_cache=*/false);
  std::vector<std::unique_ptr<Answer>> wanted, got;
  for (uint64_t i = 1; i <= kRequests; ++i) {
    wanted.push_back(std::make_unique<Answer>());
    wanted.back()->Submit(&alone, SampledRequest(i));
    wanted.back()->run.WaitAll();
  }
  EngineOptions other_steps = InvariantOptions(3);
  other_steps.step_tokens = 40;
  other_steps.speculate = 0;
  TestWorker worker(BatchDir(), other_steps, nullptr, /*with_cache=*/false);
  absl::Notification submitted;
  for (uint64_t i = 1; i <= kRequests; ++i) {
    got.push_back(std::make_unique<Answer>());
    got.back()->on_token = [&] { submitted.WaitForNotification(); };
    got.back()->Submit(&worker, SampledRequest(i));
  }
  submitted.Notify();
  for (auto& answer : got) answer->run.WaitAll();
  for (size_t i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    ExpectEqual(*got[i], *wanted[i]);
  }
  for (const char* counter : {"computed_tokens", "generated_tokens", "decode_steps", "step_rows"}) {
    EXPECT_EQ(worker.Counter(counter), alone.Counter(counter)) << counter;
  }
  EXPECT_EQ(worker.Counter("step_rows"),
            worker.Counter("computed_tokens") + worker.Counter("decode_steps"));
  EXPECT_LT(worker.Counter("steps"), alone.Counter("steps") / 2);
  EXPECT_EQ(worker.Counter("nondeterminism"), 0u);
}

// Eight sequences decode, while a prompt of 200 tokens gets half of the rows of each step.
TEST(EngineBatchTest, LongPromptSharesStepsWithDecoding) {
  EngineOptions options = InvariantOptions();
  options.max_running = 9;
  options.speculate = 0;  // a correct guess could end a sequence too early
  TestWorker worker(BatchDir(), options, nullptr, /*with_cache=*/false);
  // The first token blocks the engine until all eight sequences are submitted, so that no sequence
  // ends before the last one decodes. The tenth token of the last sequence blocks the engine until
  // the long prompt is submitted. At this time all eight sequences decode.
  absl::Notification eight_submitted, all_decode, submitted;
  std::vector<std::unique_ptr<Collector>> decoding;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    decoding.push_back(std::make_unique<Collector>());
    decoding.back()->on_token = [&, seed](size_t number) {
      eight_submitted.WaitForNotification();
      if (seed == 8 && number == 10) {
        all_decode.Notify();
        submitted.WaitForNotification();
      }
      return true;
    };
    worker.Submit(Request(Prompt(20, seed), {}, 480), decoding.back().get());
  }
  eight_submitted.Notify();
  all_decode.WaitForNotification();
  Collector prompt;
  std::map<std::string, uint64_t> begun, ended;
  EngineCallbacks callbacks = prompt.Callbacks();
  callbacks.on_started = [&](const StartedInfo&) { begun = worker->Stats().counters; };
  callbacks.on_token = [&](const SampledToken&) {
    if (ended.empty()) ended = worker->Stats().counters;
    return false;
  };
  const auto handle = worker->Submit(Request(Prompt(200, 50), {}, 2), std::move(callbacks));
  submitted.Notify();
  ASSERT_TRUE(handle.ok());
  prompt.WaitEnd();
  const uint64_t steps = ended["steps"] - begun["steps"];
  EXPECT_LE(steps, 200u / 8 + 2);
  EXPECT_GE(ended["decode_steps"] - begun["decode_steps"], (steps - 1) * 8);
  for (auto& run : decoding) run->WaitEnd();
}

TEST(EngineBatchTest, CancelledRequestLeavesOthersUnchanged) {
  TestWorker alone(BatchDir(), InvariantOptions(), nullptr, /*with_cache=*/false);
  TestWorker worker(BatchDir(), InvariantOptions());
  Collector stays, leaves, stops;
  std::shared_ptr<EngineRequestHandle> handle;
  absl::Notification submitted;
  leaves.on_token = [&](size_t number) {
    submitted.WaitForNotification();
    if (number == 3) handle->Cancel();
    return true;
  };
  stops.on_token = [](size_t number) { return number < 5; };
  handle = worker.Submit(Request(Prompt(50, 2), {}, 60), &leaves);
  worker.Submit(Request(Prompt(90, 1), {}, 60), &stays);
  worker.Submit(Request(Prompt(70, 3), {}, 60), &stops);
  submitted.Notify();
  leaves.WaitEnd();
  stays.WaitEnd();
  stops.WaitEnd();
  EXPECT_EQ(leaves.error.code(), absl::StatusCode::kCancelled);
  EXPECT_LE(leaves.tokens.size(), 5u);
  EXPECT_EQ(stays.tokens, alone.Run(Request(Prompt(90, 1), {}, 60))->tokens);
  EXPECT_EQ(stops.tokens.size(), 6u);
}

}  // namespace
}  // namespace hearth
