// Decode steps with guessed tokens, in class invariant: answer, logits and published prefix equal
// those of a worker that does not guess, whatever other requests are in the batch.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_folder.h"
#include "tests/support/tiny_adapter.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/engine/speculation.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

EngineOptions Options(uint32_t speculate = kDefaultSpeculate) {
  EngineOptions options = InvariantOptions();
  options.speculate = speculate;
  return options;
}

const std::string& Dir() { return ModelDir(Geometries()[1].geometry); }

// Returns a prompt with repetitions and a few differences between them.
std::vector<int32_t> RepeatingPrompt(uint32_t tokens, uint64_t seed) {
  const std::vector<int32_t> part = Prompt(13, seed), mistakes = Prompt(tokens, seed + 100);
  std::vector<int32_t> prompt;
  for (uint32_t i = 0; i < tokens; ++i) prompt.push_back(i % 29 == 28 ? mistakes[i] : part[i % 13]);
  return prompt;
}

EngineRequest Repeating(uint64_t number, uint32_t answer = 60) {
  const auto tokens = static_cast<uint32_t>(30 + 17 * (number % 8));
  EngineRequest request = Request(RepeatingPrompt(tokens, number), {}, answer);
  request.hash_logits = true;
  request.sampling.report_logprobs = true;
  if (number % 2 == 0) {
    request.sampling.temperature = 0.5F;
    request.sampling.seed = number;
  }
  return request;
}

struct GuessedAnswer {
  Collector run;
  std::vector<SampledToken> tokens;  // tokens of all samples
  std::function<bool(size_t)> on_token;

  std::shared_ptr<EngineRequestHandle> Submit(TestWorker* worker, const EngineRequest& request) {
    EngineCallbacks callbacks = run.Callbacks(request.cache == CacheMode::kDefault);
    callbacks.on_token = [this, inner = callbacks.on_token](const SampledToken& token) {
      tokens.push_back(token);
      inner(token);
      return on_token == nullptr || on_token(tokens.size() - 1);
    };
    auto handle = (*worker)->Submit(request, std::move(callbacks));
    return *handle;
  }
};

std::unique_ptr<GuessedAnswer> AnswerOf(TestWorker* worker, const EngineRequest& request) {
  auto answer = std::make_unique<GuessedAnswer>();
  answer->Submit(worker, request);
  answer->run.WaitAll();
  EXPECT_TRUE(answer->run.error.ok()) << answer->run.error;
  return answer;
}

void ExpectSame(const GuessedAnswer& got, const GuessedAnswer& want) {
  EXPECT_EQ(got.run.finished.generated_tokens, want.run.finished.generated_tokens);
  EXPECT_EQ(got.run.finished.reason, want.run.finished.reason);
  EXPECT_EQ(got.run.finished.first_logits_sha256, want.run.finished.first_logits_sha256);
  ASSERT_EQ(got.run.finished.samples.size(), want.run.finished.samples.size());
  for (size_t i = 0; i < want.run.finished.samples.size(); ++i) {
    const SampleEnd &got_end = got.run.finished.samples[i], &end = want.run.finished.samples[i];
    EXPECT_EQ(got_end.logits_sha256, end.logits_sha256);
    EXPECT_EQ(got_end.reason, end.reason);
    EXPECT_EQ(got_end.generated_tokens, end.generated_tokens);
  }
  std::map<uint32_t, std::vector<std::pair<int32_t, float>>> by_sample[2];
  for (const SampledToken& token : got.tokens)
    by_sample[0][token.sample].emplace_back(token.id, token.logprob);
  for (const SampledToken& token : want.tokens)
    by_sample[1][token.sample].emplace_back(token.id, token.logprob);
  EXPECT_EQ(by_sample[0], by_sample[1]);
}

// Checks that the counters match the tokens: each step produced one token plus its accepted
// guesses.
void ExpectCounted(const GuessedAnswer& answer) {
  const FinishedInfo& info = answer.run.finished;
  const auto samples = static_cast<uint32_t>(info.samples.size());
  EXPECT_EQ(info.decode_steps + info.accepted_tokens + samples, info.generated_tokens);
  EXPECT_LE(info.accepted_tokens, info.drafted_tokens);
}

class EngineSpeculationTest : public testing::TestWithParam<NamedGeometry> {
 protected:
  const std::string& dir() const { return ModelDir(GetParam().geometry); }
};

// Requests run uncached, batched, restored from pool and store, sampled and greedy.
TEST_P(EngineSpeculationTest, GuessesKeepEveryAnswer) {
  constexpr uint64_t kRequests = 6;
  TestWorker plain(dir(), Options(0), nullptr, /*with_cache=*/false);
  std::vector<std::unique_ptr<GuessedAnswer>> wanted;
  for (uint64_t i = 1; i <= kRequests; ++i) wanted.push_back(AnswerOf(&plain, Repeating(i)));
  TestWorker first(dir(), Options());
  TestWorker second(dir(), Options(3), first.cache());
  uint32_t drafted = 0, accepted = 0, restored = 0;
  for (TestWorker* worker : {&first, &first, &second}) {
    absl::Notification submitted;
    std::vector<std::unique_ptr<GuessedAnswer>> got;
    for (uint64_t i = 1; i <= kRequests; ++i) {
      got.push_back(std::make_unique<GuessedAnswer>());
      got.back()->on_token = [&](size_t) {
        submitted.WaitForNotification();
        return true;
      };
      got.back()->Submit(worker, Repeating(i));
    }
    submitted.Notify();
    for (size_t i = 0; i < kRequests; ++i) {
      SCOPED_TRACE(i);
      got[i]->run.WaitAll();
      ExpectSame(*got[i], *wanted[i]);
      ExpectCounted(*got[i]);
      drafted += got[i]->run.finished.drafted_tokens;
      accepted += got[i]->run.finished.accepted_tokens;
      restored += got[i]->run.started.cached_tokens;
    }
    EXPECT_EQ(worker->Counter("nondeterminism"), 0u);
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(drafted, accepted) << "some guesses must be wrong";
  EXPECT_GT(restored, 0u);
}

INSTANTIATE_TEST_SUITE_P(Geometries, EngineSpeculationTest, testing::ValuesIn(Geometries()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(EngineSpeculation, RepeatingAnswerTakesFewerSteps) {
  TestWorker plain(Dir(), Options(0)), worker(Dir(), Options());
  EngineRequest request = Repeating(1, /*answer=*/200);
  const auto want = AnswerOf(&plain, request), got = AnswerOf(&worker, request);
  ExpectSame(*got, *want);
  EXPECT_EQ(want->run.finished.decode_steps, 199u);
  EXPECT_EQ(want->run.finished.drafted_tokens, 0u);
  EXPECT_LT(got->run.finished.decode_steps, 100u);
  for (const char* counter : {"decode_steps", "drafted_tokens", "accepted_tokens"})
    EXPECT_GT(worker.Counter(counter), 0u) << counter;
  EXPECT_EQ(worker.Counter("decode_steps"), got->run.finished.decode_steps);
  EXPECT_EQ(worker.Counter("step_rows"), worker.Counter("computed_tokens") +
                                             worker.Counter("decode_steps") +
                                             worker.Counter("drafted_tokens"));
}

TEST(EngineSpeculation, RequestOverridesDraftLength) {
  TestWorker plain(Dir(), Options(0)), worker(Dir(), Options());
  EngineRequest request = Repeating(1);
  request.speculate = 0;
  EXPECT_EQ(AnswerOf(&worker, request)->run.finished.drafted_tokens, 0u);
  request.speculate = 5;
  EXPECT_GT(AnswerOf(&plain, request)->run.finished.drafted_tokens, 0u);
  request.speculate = DraftLength::kMost + 1;
  EXPECT_THAT(std::string(plain->Complete(&request).message()),
              AllOf(HasSubstr("speculate: "), HasSubstr("[0, 15]; got 16")));
}

TEST(EngineSpeculation, ExactClassRefusesSpeculation) {
  EngineOptions options = TestWorker::SmallOptions();
  options.speculate = kDefaultSpeculate;
  TestWorker exact(Dir(), options);
  EngineRequest request = Repeating(1);
  EXPECT_EQ(AnswerOf(&exact, request)->run.finished.drafted_tokens, 0u);
  request.speculate = 1;
  EXPECT_THAT(std::string(exact->Complete(&request).message()),
              AllOf(HasSubstr("speculate"), HasSubstr("exact")));
  options.speculate = DraftLength::kMost + 1;
  options.model_dir = Dir();
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("got 16"));
  options.speculate = 2;
  EXPECT_EQ(options.FlagsOfInvariant(), "--speculate");
}

// An answer may stop at any guessed token of a step. Only the KV up to the last sent token may be
// published.
TEST(EngineSpeculation, StoppedAnswerPublishesOnlySentTokens) {
  for (const size_t last : {20u, 21u, 22u, 23u, 24u, 25u, 26u, 27u, 28u}) {
    SCOPED_TRACE(last);
    std::unique_ptr<GuessedAnswer> kept[2], next[2];
    for (const bool guesses : {false, true}) {
      TestWorker worker(Dir(), Options(guesses ? kDefaultSpeculate : 0));
      kept[guesses] = std::make_unique<GuessedAnswer>();
      kept[guesses]->on_token = [&](size_t number) { return number < last; };
      kept[guesses]->Submit(&worker, Repeating(1, 200));
      kept[guesses]->run.WaitAll();
      EngineRequest more = Repeating(1, 30);
      for (const SampledToken& token : kept[guesses]->tokens) more.token_ids.push_back(token.id);
      TestWorker other(Dir(), Options(0), worker.cache());
      next[guesses] = AnswerOf(&other, more);
    }
    EXPECT_EQ(kept[true]->tokens.size(), last + 1);
    EXPECT_GT(kept[true]->run.finished.accepted_tokens, 0u);
    ExpectSame(*kept[true], *kept[false]);
    ExpectSame(*next[true], *next[false]);
    EXPECT_EQ(next[true]->run.started.cached_tokens, next[false]->run.started.cached_tokens);
    EXPECT_EQ(kept[true]->run.outcome.boundaries, kept[false]->run.outcome.boundaries);
    EXPECT_EQ(kept[true]->run.outcome.published_tokens, 47 + last);
  }
}

TEST(EngineSpeculation, EndTokenEndsGuessedStep) {
  TestWorker plain(Dir(), Options(0)), worker(Dir(), Options());
  uint32_t ended = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    EngineRequest request = Repeating(2 * seed, 150);
    request.ignore_eos = false;
    request.sampling.temperature = 0.8F;
    const auto want = AnswerOf(&plain, request), got = AnswerOf(&worker, request);
    ExpectSame(*got, *want);
    EXPECT_EQ(got->run.outcome.boundaries, want->run.outcome.boundaries);
    if (want->run.finished.reason == FinishReason::kEos) ++ended;
  }
  EXPECT_GT(ended, 0u);
  EXPECT_GT(worker.Counter("accepted_tokens"), 0u);
}

TEST(EngineSpeculation, CancelledRequestGetsNoMoreTokens) {
  TestWorker worker(Dir(), Options());
  for (const size_t last : {40u, 41u, 42u, 43u}) {
    GuessedAnswer answer;
    std::shared_ptr<EngineRequestHandle> handle;
    absl::Notification submitted;
    answer.on_token = [&](size_t number) {
      submitted.WaitForNotification();
      if (number == last) handle->Cancel();
      return true;
    };
    handle = answer.Submit(&worker, Repeating(1, 200));
    submitted.Notify();
    answer.run.WaitEnd();
    EXPECT_EQ(answer.run.error.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(answer.tokens.size(), last + 1);
  }
  EXPECT_GT(worker.Counter("accepted_tokens"), 0u);
}

TEST(EngineSpeculation, SamplesGuessIndependently) {
  TestWorker plain(Dir(), Options(0)), worker(Dir(), Options());
  EngineRequest request = Repeating(2, 80);
  request.samples = 4;
  const auto want = AnswerOf(&plain, request), got = AnswerOf(&worker, request);
  ExpectSame(*got, *want);
  ExpectCounted(*got);
  EXPECT_GT(got->run.finished.accepted_tokens, 0u);
}

TEST(EngineSpeculation, GuessesKeepEachStrategysBits) {
  for (const char* cache : {"static", "quantized", "offloaded"}) {
    SCOPED_TRACE(cache);
    std::unique_ptr<GuessedAnswer> answers[2], again[2];
    for (const bool guesses : {false, true}) {
      EngineOptions options = Options(guesses ? kDefaultSpeculate : 0);
      options.kv.cache = cache;
      if (options.kv.cache == "quantized") options.kv.quantization = "bits=4,group=16,residual=16";
      TestWorker worker(Dir(), options);
      answers[guesses] = AnswerOf(&worker, Repeating(1, 120));
      again[guesses] = AnswerOf(&worker, Repeating(1, 130));
    }
    ExpectSame(*answers[true], *answers[false]);
    ExpectSame(*again[true], *again[false]);
    EXPECT_GT(again[true]->run.started.cached_tokens, 0u);
    EXPECT_GT(answers[true]->run.finished.accepted_tokens, 10u);
    EXPECT_GT(answers[true]->run.finished.drafted_tokens,
              answers[true]->run.finished.accepted_tokens);
  }
}

TEST(EngineSpeculation, GuessesUseTheRequestsAdapter) {
  const TinyGeometry& geometry = Geometries()[1].geometry;
  const TestFolder folder;
  WriteTinyAdapter(geometry, 8, folder.path());
  std::unique_ptr<GuessedAnswer> answers[2], base[2];
  for (const bool guesses : {false, true}) {
    EngineOptions options = Options(guesses ? kDefaultSpeculate : 0);
    options.adapters = {{"legal", folder.path()}};
    TestWorker worker(Dir(), options);
    EngineRequest request = Repeating(1, 150);
    base[guesses] = AnswerOf(&worker, request);
    request.adapter = "legal";
    answers[guesses] = AnswerOf(&worker, request);
  }
  ExpectSame(*answers[true], *answers[false]);
  ExpectSame(*base[true], *base[false]);
  EXPECT_NE(base[true]->run.finished.samples[0].logits_sha256,
            answers[true]->run.finished.samples[0].logits_sha256);
  EXPECT_GT(answers[true]->run.finished.accepted_tokens, 0u);
}

TEST(EngineSpeculation, StaticGuessesAllocateNothing) {
  EngineOptions options = Options();
  options.kv.cache = "static";
  TestWorker worker(Dir(), options);
  GuessedAnswer answer;
  uint64_t taken = 0;
  answer.on_token = [&](size_t number) {
    if (number == 0) taken = worker->Stats().kv_blocks_taken;
    return true;
  };
  answer.Submit(&worker, Repeating(1, 200));
  answer.run.WaitAll();
  EXPECT_GT(answer.run.finished.drafted_tokens, 0u);
  EXPECT_EQ(worker->Stats().kv_blocks_taken, taken);
}

}  // namespace
}  // namespace hearth
