#include "worker/text/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SamplingParams Params(float temperature, uint32_t top_k = 0, float top_p = 0, uint64_t seed = 1) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.seed = seed;
  return params;
}

std::vector<float> LogsOf(std::vector<float> probabilities) {
  for (float& value : probabilities) value = std::log(value);
  return probabilities;
}

std::vector<int32_t> Kept(const std::vector<float>& logits, const SamplingParams& params) {
  Sampler sampler;
  std::vector<int32_t> ids;
  for (const Candidate& candidate : sampler.Filter(logits, params)) ids.push_back(candidate.id);
  return ids;
}

TEST(Sampler, GreedyPrefersLowestIdOfEquals) {
  Sampler sampler;
  EXPECT_EQ(sampler.Sample({-1.F, 3.F, 2.F, 3.F}, Params(0), 0)->id, 1);
  EXPECT_EQ(sampler.Sample({-3.F}, Params(0), 0)->id, 0);
  EXPECT_EQ(sampler.Sample({1.F, 2.F}, Params(0, 1, 0.5F, 99), 7)->id, 1);
}

TEST(Sampler, TopKKeepsExactlyK) {
  EXPECT_THAT(Kept({1, 5, 3, 5, 3, 3}, Params(1, 3)), ElementsAre(1, 3, 2));
  EXPECT_THAT(Kept({1, 5, 3}, Params(1, 1)), ElementsAre(1));
  EXPECT_THAT(Kept({1, 5, 3}, Params(1, 0)), ElementsAre(0, 1, 2));
  EXPECT_THAT(Kept({1, 5, 3}, Params(1, 3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(Kept({1, 5, 3}, Params(1, 9)), ElementsAre(0, 1, 2));
}

TEST(Sampler, TopPKeepsSmallestSufficientSet) {
  const std::vector<float> logits = LogsOf({0.1F, 0.5F, 0.1F, 0.3F});
  EXPECT_THAT(Kept(logits, Params(1, 0, 0.49F)), ElementsAre(1));
  EXPECT_THAT(Kept(logits, Params(1, 0, 0.51F)), ElementsAre(1, 3));
  EXPECT_THAT(Kept(logits, Params(1, 0, 0.85F)), ElementsAre(1, 3, 0));
  EXPECT_THAT(Kept(logits, Params(1, 0, 1e-6F)), ElementsAre(1)) << "at least one token is kept";
  EXPECT_EQ(Kept(logits, Params(1, 0, 1)).size(), 4U);
  // Top-k of 2 leaves the probabilities 0.625 and 0.375.
  EXPECT_THAT(Kept(logits, Params(1, 2, 0.6F)), ElementsAre(1));
  EXPECT_THAT(Kept(logits, Params(1, 2, 0.65F)), ElementsAre(1, 3));
}

TEST(Sampler, TopPWorksOnLargeVocabulary) {
  std::vector<float> logits(262144);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = UniformAt(3, i);
  const auto kept = Kept(logits, Params(1, 0, 0.5F));
  double sum = 0, reached = 0, last = 0;
  for (const float logit : logits) sum += std::exp(logit);
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_GE(logits[kept[i == 0 ? 0 : i - 1]], logits[kept[i]]);
    reached += last = std::exp(logits[kept[i]]);
  }
  EXPECT_GE(reached / sum, 0.5 - 1e-9);
  EXPECT_LT((reached - last) / sum, 0.5 + 1e-9);
}

TEST(Sampler, DrawsAreProportional) {
  const std::vector<float> logits = LogsOf({0.1F, 0.6F, 0.3F});
  Sampler sampler;
  std::map<int32_t, int> all, filtered;
  constexpr int kDraws = 30000;
  for (int step = 0; step < kDraws; ++step) {
    ++all[sampler.Sample(logits, Params(1), step)->id];
    ++filtered[sampler.Sample(logits, Params(1, 2), step)->id];
  }
  // Four standard deviations of the measured fractions are below 0.012.
  EXPECT_NEAR(all[0] / double{kDraws}, 0.1, 0.012);
  EXPECT_NEAR(all[1] / double{kDraws}, 0.6, 0.012);
  EXPECT_NEAR(all[2] / double{kDraws}, 0.3, 0.012);
  EXPECT_EQ(filtered.count(0), 0U);
  EXPECT_NEAR(filtered[1] / double{kDraws}, 2.0 / 3, 0.012);
}

TEST(Sampler, TemperatureSharpensAndFlattens) {
  const std::vector<float> logits = {0, 1};
  Sampler sampler;
  const auto cold = sampler.Filter(logits, Params(0.5F));
  EXPECT_NEAR(cold[0].weight, std::exp(-2.0), 1e-12);
  const auto hot = sampler.Filter(logits, Params(2));
  EXPECT_NEAR(hot[0].weight, std::exp(-0.5), 1e-12);
  // The temperature is almost 0: all other weights are 0, and their tokens must not be sampled.
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(sampler.Sample({1, 3, 2}, Params(1e-30F), step)->id, 1);
  }
}

TEST(Sampler, SeedAndStepDetermineToken) {
  std::vector<float> logits(1000, 0);
  Sampler first, second;
  int differ = 0;
  for (int step = 0; step < 50; ++step) {
    const int32_t id = first.Sample(logits, Params(1, 0, 0, 7), step)->id;
    EXPECT_EQ(second.Sample(logits, Params(1, 0, 0, 7), step)->id, id);
    differ += first.Sample(logits, Params(1, 0, 0, 8), step)->id != id;
  }
  EXPECT_GT(differ, 40);
}

// Published numbers: implementations on other machines or in other languages must produce them,
// too.
TEST(Sampler, RandomNumbersEqualPublishedOnes) {
  EXPECT_EQ(UniformAt(0, 0), 0x1.4e0dba5e9a32fp-1);
  EXPECT_EQ(UniformAt(0, 1), 0x1.6705460be8829p-1);
  EXPECT_EQ(UniformAt(42, 1000), 0x1.63f919049aa49p-1);
  EXPECT_EQ(UniformAt(~uint64_t{0}, ~uint64_t{0}), 0x1.1140638c16042p-2);
}

TEST(Sampler, LogprobsIgnoreTemperatureAndFilters) {
  const std::vector<float> logits = LogsOf({0.1F, 0.6F, 0.15F, 0.15F});
  Sampler sampler;
  SamplingParams params = Params(0);
  EXPECT_EQ(sampler.Sample(logits, params, 0)->logprob, 0)
      << "log probabilities were not requested";
  params.report_logprobs = true;
  EXPECT_NEAR(sampler.Sample(logits, params, 0)->logprob, std::log(0.6), 1e-6);
  params = Params(0.1F, 2);
  params.logprobs = 3;
  const auto token = sampler.Sample(logits, params, 0);
  EXPECT_NEAR(token->logprob, std::log(0.6), 1e-6)
      << "the log probability ignores temperature and filters";
  ASSERT_EQ(token->top.size(), 3U);
  EXPECT_EQ(token->top[0].id, 1);
  EXPECT_EQ(token->top[1].id, 2);
  EXPECT_EQ(token->top[2].id, 3);
  EXPECT_NEAR(token->top[2].logprob, std::log(0.15), 1e-6);
  params.logprobs = 20;
  EXPECT_EQ(sampler.Sample(logits, params, 0)->top.size(), 4U);
}

// Reference: applies the rules of sampler.h one by one to the whole vocabulary.
struct WrittenDown {
  std::vector<Candidate> kept;
  int32_t id = 0;
  float logprob = 0;
};

WrittenDown SampleAsWritten(const std::vector<float>& logits, const SamplingParams& params,
                            uint64_t step) {
  WrittenDown made;
  const double greatest = *std::max_element(logits.begin(), logits.end());
  double all = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    made.kept.push_back({static_cast<int32_t>(i), logits[i],
                         std::exp((logits[i] - greatest) / params.temperature)});
    all += std::exp(logits[i] - greatest);
  }
  const bool top_k = params.top_k > 0 && params.top_k < logits.size();
  const bool top_p = params.top_p > 0 && params.top_p < 1;
  double sum = 0;
  for (const Candidate& candidate : made.kept) sum += candidate.weight;
  if (top_k || top_p) {
    std::stable_sort(made.kept.begin(), made.kept.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  }
  if (top_k) {
    made.kept.resize(params.top_k);
    sum = 0;
    for (const Candidate& candidate : made.kept) sum += candidate.weight;
  }
  if (top_p) {
    double reached = 0;
    size_t kept = 0;
    while (kept < made.kept.size() && reached < params.top_p * sum) {
      reached += made.kept[kept++].weight;
    }
    made.kept.resize(kept);
  }
  std::vector<Candidate> likely;
  for (const Candidate& candidate : made.kept) {
    if (candidate.weight >= params.min_p) likely.push_back(candidate);
  }
  made.kept = likely;
  sum = 0;
  for (const Candidate& candidate : made.kept) sum += candidate.weight;
  const double point = UniformAt(params.seed, step) * sum;
  double reached = 0;
  for (const Candidate& candidate : made.kept) {
    if (candidate.weight > 0) made.id = candidate.id;
    reached += candidate.weight;
    if (reached > point) break;
  }
  made.logprob = static_cast<float>(logits[made.id] - (greatest + std::log(all)));
  return made;
}

// Returns logits of one of four kinds: flat, typical of a model, peaked, or with many equal values.
std::vector<float> SomeLogits(size_t count, int kind, uint64_t seed) {
  std::vector<float> logits(count);
  for (size_t i = 0; i < count; ++i) {
    const double draw = UniformAt(seed, i);
    const double by_kind[] = {draw, -30 * draw, 200 * draw * draw * draw, std::floor(8 * draw)};
    logits[i] = static_cast<float>(by_kind[kind]);
  }
  return logits;
}

TEST(Sampler, SampleEqualsReference) {
  for (const size_t count : {1u, 3u, 255u, 300u, 1024u, 1025u, 2500u}) {
    for (int kind = 0; kind < 4; ++kind) {
      const std::vector<float> logits = SomeLogits(count, kind, count);
      for (SamplingParams params : {Params(1), Params(0.3F), Params(7), Params(1, 0, 0.4F),
                                    Params(0.2F, 0, 0.95F), Params(1, 40), Params(2, 300, 0.8F)}) {
        params.report_logprobs = true;
        params.min_p = kind == 2 ? 0.1F : 0;
        Sampler sampler;
        for (uint64_t step = 0; step < (count < 1000 ? 12 : 2); ++step) {
          const WrittenDown wanted = SampleAsWritten(logits, params, step);
          const auto token = sampler.Sample(logits, params, step);
          ASSERT_EQ(token->id, wanted.id) << count << " " << kind << " " << step;
          ASSERT_EQ(token->logprob, wanted.logprob) << count << " " << kind << " " << step;
        }
        std::vector<int32_t> ids;
        for (const Candidate& one : SampleAsWritten(logits, params, 0).kept) ids.push_back(one.id);
        ASSERT_EQ(Kept(logits, params), ids) << count << " " << kind;
      }
    }
  }
}

// Covers the halving of large sets. The state that a sampler keeps between calls must not change
// results.
TEST(Sampler, ReusedSamplerEqualsReference) {
  constexpr float kTopP[] = {1e-6F, 0.05F, 0.3F, 0.5F, 0.8F, 0.95F, 0.999F, 0.99999994F};
  constexpr float kTemperature[] = {1e-30F, 0.05F, 0.7F, 1, 1.5F, 100};
  Sampler sampler;
  int many = 0, few = 0;
  for (uint64_t round = 0; round < 200; ++round) {
    const auto pick = [&](uint64_t of, uint64_t what) {
      return static_cast<size_t>(UniformAt(round, what) * static_cast<double>(of));
    };
    const std::vector<float> logits = SomeLogits(1 + pick(round % 40 == 0 ? 30000 : 3000, 1),
                                                 static_cast<int>(pick(4, 2)), round);
    SamplingParams params = Params(kTemperature[pick(std::size(kTemperature), 3)], 0,
                                   kTopP[pick(std::size(kTopP), 4)], round * 977);
    if (pick(4, 7) == 0) params.min_p = kTopP[pick(5, 8)];
    if (pick(5, 5) == 0) params.top_k = static_cast<uint32_t>(1 + pick(logits.size(), 6));
    params.report_logprobs = true;
    for (uint64_t step = 0; step < 2; ++step) {
      const WrittenDown wanted = SampleAsWritten(logits, params, step);
      (params.top_k == 0 && wanted.kept.size() > 256 ? many : few) += 1;
      const auto token = sampler.Sample(logits, params, step);
      ASSERT_EQ(token->id, wanted.id) << "round " << round << ", step " << step;
      ASSERT_EQ(token->logprob, wanted.logprob) << "round " << round << ", step " << step;
    }
  }
  EXPECT_GT(many, 60);
  EXPECT_GT(few, 60);
}

// The sums reach the wanted fraction exactly. In a different order of adding they might miss it, so
// the documented order must be used.
TEST(Sampler, SumOrderEqualsReference) {
  for (const size_t count : {512u, 1024u, 4096u}) {
    for (const float temperature : {1.0F, 0.3F}) {
      for (const float top_p : {0.0F, 0.25F, 0.5F, 0.75F}) {
        const std::vector<float> logits(count, -1.5F);
        Sampler sampler;
        for (uint64_t step = 0; step < 8; ++step) {
          const SamplingParams params = Params(temperature, 0, top_p, count);
          ASSERT_EQ(sampler.Sample(logits, params, step)->id,
                    SampleAsWritten(logits, params, step).id)
              << count << " " << top_p << " " << step;
        }
      }
    }
  }
}

TEST(Sampler, NonFiniteLogitsAreRefused) {
  Sampler sampler;
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    const auto token = sampler.Sample({0, 1, bad}, Params(0), 0);
    EXPECT_EQ(token.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(token.status().message()), HasSubstr("logits[2]"));
  }
}

TEST(Sampler, LikeliestEqualsTopLogprobs) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::floor(300 * UniformAt(3, i)) / 16;
  Sampler sampler;
  SamplingParams params = Params(0);
  params.logprobs = 20;
  const std::vector<TokenLogprob> top = sampler.Sample(logits, params, 0)->top;
  const std::vector<TokenLogprob> likeliest = *sampler.Likeliest(logits, 200);
  ASSERT_EQ(likeliest.size(), 200u);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (size_t i = 0; i < likeliest.size(); ++i) {
    const float logit = logits[static_cast<size_t>(likeliest[i].id)];
    EXPECT_EQ(likeliest[i].logprob, static_cast<float>(logit - std::log(sum)));
    if (i < top.size()) {
      EXPECT_EQ(likeliest[i].id, top[i].id);
    }
    if (i == 0) continue;
    const TokenLogprob& before = likeliest[i - 1];
    EXPECT_TRUE(before.logprob > likeliest[i].logprob ||
                (before.logprob == likeliest[i].logprob && before.id < likeliest[i].id));
  }
  EXPECT_EQ(sampler.Likeliest({1, 2, 3}, 9)->size(), 3u);
  EXPECT_EQ(sampler.Likeliest({1, HUGE_VALF}, 1).status().code(), absl::StatusCode::kInternal);
}

TEST(SamplingParams, InvalidValueNamesFieldAndLimit) {
  EXPECT_TRUE(Params(0).Validate().ok());
  EXPECT_TRUE(Params(100, 1U << 31, 1).Validate().ok());
  const auto message = [](const SamplingParams& params) {
    EXPECT_EQ(params.Validate().code(), absl::StatusCode::kInvalidArgument);
    return std::string(params.Validate().message());
  };
  EXPECT_EQ(message(Params(-1)), "sampling.temperature: is -1; must be in [0, 100]");
  EXPECT_THAT(message(Params(std::nanf(""))), HasSubstr("sampling.temperature"));
  EXPECT_THAT(message(Params(101)), HasSubstr("sampling.temperature: is 101"));
  EXPECT_EQ(message(Params(1, 0, 1.5F)), "sampling.top_p: is 1.5; must be 0 (off) or in (0, 1]");
  EXPECT_THAT(message(Params(1, 0, -0.1F)), HasSubstr("sampling.top_p"));
  EXPECT_THAT(message(Params(1, 0, std::nanf(""))), HasSubstr("sampling.top_p"));
  SamplingParams params;
  params.min_p = 1.5F;
  EXPECT_EQ(message(params), "sampling.min_p: is 1.5; must be in [0, 1]");
  params.min_p = 0;
  params.logprobs = 21;
  EXPECT_EQ(message(params), "sampling.logprobs: is 21; must be in [0, 20]");
}

}  // namespace
}  // namespace hearth
