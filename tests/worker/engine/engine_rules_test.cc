// Rules for single tokens (biases, penalties, bans): an answer depends only on the prompt, the seed
// and the settings, not on guesses, caching, other requests or earlier answers.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Ne;

const std::string& Dir() { return ModelDir(Geometries()[1].geometry); }

EngineRequest Ruled(uint64_t number, uint32_t answer = 40) {
  EngineRequest request =
      Request(Prompt(20 + 23 * static_cast<size_t>(number), number), {}, answer);
  request.hash_logits = true;
  request.sampling.report_logprobs = true;
  if (number % 2 == 0) request.sampling.temperature = 1.5F;
  request.sampling.min_p = 0.01F;
  request.sampling.seed = number;
  TokenRules& rules = request.sampling.rules;
  rules.repetition_penalty = 1.3F;
  rules.presence_penalty = 0.3F;
  rules.frequency_penalty = 0.2F;
  rules.logit_bias = {{3, 2.5F}, {9, -100}};
  rules.bad_ids = {11, 12};
  return request;
}

TEST(EngineTokenRules, AnswersWithRulesAreReproducible) {
  EngineOptions plain_options = InvariantOptions();
  plain_options.speculate = 0;
  TestWorker plain(Dir(), plain_options, nullptr, /*with_cache=*/false);
  std::vector<std::unique_ptr<Collector>> wanted;
  for (uint64_t i = 1; i <= 4; ++i) wanted.push_back(plain.Run(Ruled(i)));
  TestWorker busy(Dir(), InvariantOptions());
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Collector>> got;
    for (uint64_t i = 1; i <= 4; ++i) {
      got.push_back(std::make_unique<Collector>());
      busy.Submit(Ruled(i), got.back().get());
    }
    for (size_t i = 0; i < got.size(); ++i) {
      got[i]->WaitAll();
      EXPECT_EQ(got[i]->tokens, wanted[i]->tokens) << i;
      EXPECT_EQ(got[i]->finished.samples[0].logits_sha256,
                wanted[i]->finished.samples[0].logits_sha256);
    }
  }
  for (uint64_t i = 1; i <= 4; ++i) {
    const std::vector<int32_t>& whole = wanted[i - 1]->tokens;
    EngineRequest rest = Ruled(i, 20);
    rest.token_ids.insert(rest.token_ids.end(), whole.begin(), whole.begin() + 20);
    rest.first_draw = 20;
    EXPECT_EQ(busy.Run(rest)->tokens, std::vector<int32_t>(whole.begin() + 20, whole.end())) << i;
  }
}

TEST(EngineTokenRules, SampleWithRulesEqualsSeededRequest) {
  TestWorker worker(Dir(), InvariantOptions());
  EngineRequest several = Ruled(2);
  several.samples = 3;
  several.first_draw = 7;
  Collector run;
  std::vector<std::vector<int32_t>> answers(3);
  EngineCallbacks callbacks = run.Callbacks();
  callbacks.on_token = [&](const SampledToken& token) {
    answers[token.sample].push_back(token.id);
    return true;
  };
  ASSERT_TRUE(worker->Submit(several, std::move(callbacks)).ok());
  run.WaitEnd();
  for (uint32_t i = 0; i < 3; ++i) {
    EngineRequest one = Ruled(2);
    one.first_draw = 7;
    one.sampling.seed = SeedOfSample(2, i);
    EXPECT_EQ(answers[i], worker.Run(one)->tokens) << i;
  }
}

TEST(EngineTokenRules, PenaltiesAndBansChangeAnswers) {
  TestWorker worker(Dir(), InvariantOptions());
  const auto plain = worker.Run(Request(Prompt(30), {}, 40));
  EngineRequest request = Request(Prompt(30), {}, 40);
  request.sampling.rules.bad_ids = {plain->tokens[0]};
  EXPECT_THAT(worker.Run(request)->tokens, Each(Ne(plain->tokens[0])));
  request.sampling.rules.bad_ids = {};
  request.sampling.rules.logit_bias = {{77, 100}};
  EXPECT_THAT(worker.Run(request)->tokens, Each(77));
  request.sampling.rules.logit_bias = {};
  request.sampling.rules.frequency_penalty = 2;
  const auto varied = worker.Run(request)->tokens;
  const auto kinds = [](std::vector<int32_t> ids) {
    std::sort(ids.begin(), ids.end());
    return std::unique(ids.begin(), ids.end()) - ids.begin();
  };
  EXPECT_GT(kinds(varied), kinds(plain->tokens));
}

TEST(EngineTokenRules, StopTokenEndsAnswerAfterMinimum) {
  TestWorker worker(Dir(), InvariantOptions());
  const std::vector<int32_t> plain = worker.Run(Request(Prompt(30), {}, 40))->tokens;
  const int32_t stop = plain[20];
  const auto first = std::find(plain.begin(), plain.end(), stop);
  EngineRequest request = Request(Prompt(30), {}, 40);
  request.sampling.rules.stop_ids = {stop};
  const auto stopped = worker.Run(request);
  EXPECT_EQ(stopped->tokens, std::vector<int32_t>(plain.begin(), first));
  EXPECT_EQ(stopped->finished.reason, FinishReason::kStop);
  request.sampling.rules.min_tokens = 30;
  const auto longer = worker.Run(request);
  EXPECT_GE(longer->tokens.size(), 30u);
  EXPECT_THAT(longer->tokens, Each(Ne(stop)));
}

// Covers steps of more than 64 rows, concurrent requests, and a cached prefix.
TEST(PromptLogprobs, PromptLogprobsEqualNextTokenLogprobs) {
  TestWorker worker(Dir(), InvariantOptions());
  EngineRequest plain = Request(Prompt(150), {}, 6);
  const std::vector<int32_t> answer = worker.Run(plain)->tokens;
  EngineRequest asked = plain;
  asked.sampling.prompt_logprobs = 2;
  ASSERT_TRUE(worker->Complete(&asked).ok());
  std::vector<SampledToken> told;
  Collector run, beside;
  worker.Submit(Ruled(3), &beside);
  EngineCallbacks callbacks = run.Callbacks();
  callbacks.on_prompt = [&](absl::Span<const SampledToken> tokens) {
    told.insert(told.end(), tokens.begin(), tokens.end());
  };
  ASSERT_TRUE(worker->Submit(asked, std::move(callbacks)).ok());
  run.WaitAll();
  beside.WaitAll();
  EXPECT_EQ(run.started.cached_tokens, 0u);
  EXPECT_EQ(run.tokens, answer);
  ASSERT_EQ(told.size(), 150u);
  for (const size_t at : {1u, 2u, 63u, 64u, 65u, 100u, 127u, 128u, 129u, 149u}) {
    EngineRequest one =
        Request(std::vector<int32_t>(plain.token_ids.begin(), plain.token_ids.begin() + at), {}, 1);
    one.sampling.report_logprobs = true;
    one.sampling.logprobs = 2;
    one.sampling.rules.logit_bias = {{plain.token_ids[at], 100}};
    Collector next;
    SampledToken drawn;
    EngineCallbacks draws = next.Callbacks();
    draws.on_token = [&](const SampledToken& token) {
      drawn = token;
      return true;
    };
    ASSERT_TRUE(worker->Submit(one, std::move(draws)).ok());
    next.WaitAll();
    EXPECT_EQ(told[at].id, plain.token_ids[at]);
    EXPECT_EQ(drawn.id, told[at].id);
    EXPECT_EQ(drawn.logprob, told[at].logprob) << at;
    ASSERT_EQ(told[at].top.size(), 2u);
    EXPECT_EQ(told[at].top[0].id, drawn.top[0].id) << at;
    EXPECT_EQ(told[at].top[0].logprob, drawn.top[0].logprob) << at;
  }
}

TEST(PromptLogprobs, PromptLogprobsNeedInvariantClass) {
  TestWorker worker(Dir());
  EngineRequest request = Request(Prompt(30), {}, 4);
  request.sampling.prompt_logprobs = 0;
  EXPECT_THAT(std::string(worker->Complete(&request).message()),
              HasSubstr("sampling.prompt_logprobs: needs exactness invariant"));
}

TEST(EngineTokenRules, InvalidRuleIsRefusedByName) {
  TestWorker worker(Dir(), InvariantOptions());
  const auto refusal = [&](void (*change)(EngineRequest*)) {
    EngineRequest request = Request(Prompt(30), {}, 4);
    change(&request);
    Collector unused;
    return std::string((*&worker)->Submit(request, {}).status().message());
  };
  EXPECT_THAT(refusal([](EngineRequest* r) {
                r->sampling.rules.logit_bias = {{1 << 20, 1}};
              }),
              HasSubstr("sampling.logit_bias: 1048576 is not in [0, "));
  EXPECT_THAT(refusal([](EngineRequest* r) { r->sampling.rules.bad_ids = {-1}; }),
              HasSubstr("sampling.bad_token_ids: -1 is not in"));
  EXPECT_THAT(refusal([](EngineRequest* r) { r->sampling.rules.bad_ids.resize(1025); }),
              HasSubstr("sampling.bad_token_ids: has 1025 tokens; the limit is 1024"));
  EXPECT_THAT(refusal([](EngineRequest* r) { r->sampling.rules.bad_ids.resize(1000); }),
              HasSubstr("must leave at least one token"));
  EXPECT_THAT(refusal([](EngineRequest* r) { r->sampling.rules.repetition_penalty = 0; }),
              HasSubstr("sampling.repetition_penalty: is 0; must be in [0.1, 10]"));
  EXPECT_THAT(refusal([](EngineRequest* r) {
                r->search.beams = 2;
                r->sampling.rules.min_tokens = 3;
              }),
              HasSubstr("cannot be combined with penalties, biases or token lists"));
}

}  // namespace
}  // namespace hearth
