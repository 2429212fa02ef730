// Beam search without a model: tables give the probabilities of the next tokens, and the expected
// scores were computed by hand.
#include "worker/text/beam_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kEnd = 1;

using Tokens = std::vector<int32_t>;
using Row = std::map<int32_t, double>;  // probability by token

std::vector<TokenLogprob> Likeliest(const Row& row) {
  std::vector<TokenLogprob> likeliest;
  for (const auto& [id, share] : row)
    likeliest.push_back({id, static_cast<float>(std::log(share))});
  std::stable_sort(likeliest.begin(), likeliest.end(),
                   [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
  return likeliest;
}

// Probabilities of the next token after each answer. `otherwise`: for answers that are not listed.
struct Table {
  std::map<Tokens, Row> rows;
  Row otherwise;
  const Row& After(const Tokens& tokens) const {
    const auto row = rows.find(tokens);
    return row == rows.end() ? otherwise : row->second;
  }
};

void Step(const Table& table, BeamSearch* search) {
  std::vector<std::vector<TokenLogprob>> likeliest;
  for (const auto& beam : search->beams()) {
    likeliest.push_back(Likeliest(table.After(beam.tokens)));
  }
  search->Advance(likeliest);
}

int StepsOf(const Table& table, BeamSearch* search) {
  int steps = 0;
  for (; !search->done(); ++steps) Step(table, search);
  return steps;
}

BeamSearch::Ends UpTo(uint32_t max_tokens, Tokens ends = {kEnd}) {
  BeamSearch::Ends made;
  made.tokens = std::move(ends);
  made.max_tokens = max_tokens;
  return made;
}

std::vector<Tokens> TokensOf(const BeamSearch& search) {
  std::vector<Tokens> tokens;
  for (const auto& beam : search.beams()) tokens.push_back(beam.tokens);
  return tokens;
}

double Log(double share) { return std::log(share); }

// The likelier first token leads to the less likely answer.
Table Misleading() {
  Table table;
  table.rows[{}] = {{2, 0.6}, {3, 0.4}};
  table.rows[{2}] = {{4, 0.5}, {5, 0.5}};
  table.rows[{3}] = {{6, 0.9}, {7, 0.1}};
  return table;
}

TEST(BeamSearch, FindsAnswerThatGreedyMisses) {
  BeamSearch search({2}, UpTo(2));
  Step(Misleading(), &search);
  EXPECT_THAT(TokensOf(search), ElementsAre(Tokens{2}, Tokens{3}));
  EXPECT_THAT(search.beams()[1].score, testing::FloatEq(std::log(0.4F)));
  Step(Misleading(), &search);
  ASSERT_TRUE(search.done());
  EXPECT_EQ(search.best().tokens, (Tokens{3, 6}));
  EXPECT_EQ(search.best().end, FinishReason::kLength);
  EXPECT_NEAR(search.best().score, Log(0.4 * 0.9) / 2, 1e-6);
}

TEST(BeamSearch, BeamsMayShareOneParent) {
  Table table;
  table.rows[{}] = {{2, 0.6}, {3, 0.4}};
  table.rows[{2}] = {{4, 0.01}, {5, 0.99}};
  table.rows[{3}] = {{6, 0.52}, {7, 0.48}};
  BeamSearch search({2}, UpTo(9));
  EXPECT_THAT(TokensOf(search), ElementsAre(IsEmpty()));
  Step(table, &search);
  Step(table, &search);
  EXPECT_THAT(TokensOf(search), ElementsAre(Tokens{2, 5}, Tokens{3, 6}));
  EXPECT_EQ(search.beams()[1].parent, 1u);
  table.rows[{2, 5}] = {{8, 0.5}, {9, 0.5}};
  table.rows[{3, 6}] = {{8, 0.1}, {9, 0.1}};
  Step(table, &search);
  EXPECT_THAT(TokensOf(search), ElementsAre(Tokens{2, 5, 8}, Tokens{2, 5, 9}))
      << "if scores are equal, the likelier token comes first";
  EXPECT_EQ(search.beams()[0].parent, 0u);
  EXPECT_EQ(search.beams()[1].parent, 0u);
}

TEST(BeamSearch, CandidateCountGrowsWithEndTokens) {
  EXPECT_EQ(BeamSearch({3}, UpTo(2, {})).candidates(), 6u);
  EXPECT_EQ(BeamSearch({3}, UpTo(2, {1})).candidates(), 6u);
  EXPECT_EQ(BeamSearch({3}, UpTo(2, {1, 2})).candidates(), 9u);
}

// The length in the score counts the end token, but the answer does not contain it.
TEST(BeamSearch, EndTokenEndsOnlyItsBeam) {
  Table table;
  table.rows[{}] = {{2, 0.5}, {kEnd, 0.3}, {3, 0.2}};
  table.rows[{2}] = {{4, 0.01}};
  table.rows[{3}] = {{5, 0.01}};
  BeamSearch search({2}, UpTo(2));
  Step(table, &search);
  ASSERT_FALSE(search.done());
  EXPECT_THAT(TokensOf(search), ElementsAre(Tokens{2}, Tokens{3}));
  Step(table, &search);
  ASSERT_TRUE(search.done());
  EXPECT_THAT(search.best().tokens, IsEmpty());
  EXPECT_EQ(search.best().end, FinishReason::kEos);
  EXPECT_NEAR(search.best().score, Log(0.3), 1e-6);
}

TEST(BeamSearch, LowRankedEndTokenIsIgnored) {
  Table table;
  table.rows[{}] = {{2, 0.5}, {3, 0.3}, {kEnd, 0.2}};
  table.otherwise = {{4, 1e-6}, {5, 1e-7}};
  BeamSearch search({2}, UpTo(2));
  StepsOf(table, &search);
  EXPECT_EQ(search.best().tokens, (Tokens{2, 4}))
      << "the end token ranks third, so its likelier answer is ignored";
}

// After two steps there are two hypotheses (of one and two tokens), and a beam whose score lies
// between theirs.
Table TwoEndsAndBetter() {
  Table table;
  table.rows[{}] = {{2, 0.5}, {kEnd, 0.3}, {3, 0.2}};
  table.rows[{2}] = {{kEnd, 0.5}, {4, 0.45}};
  table.rows[{3}] = {{5, 0.01}};
  table.rows[{2, 4}] = {{6, 1.0}};
  table.rows[{3, 5}] = {{6, 1.0}};
  table.rows[{2, 4, 6}] = {{kEnd, 1.0}};
  table.rows[{3, 5, 6}] = {{kEnd, 1.0}};
  return table;
}

TEST(BeamSearch, EarlyStoppingEndsWithEnoughHypotheses) {
  BeamSearch early({2, 1, true}, UpTo(9));
  EXPECT_EQ(StepsOf(TwoEndsAndBetter(), &early), 2);
  EXPECT_EQ(early.best().tokens, (Tokens{2}));
  EXPECT_NEAR(early.best().score, Log(0.5 * 0.5) / 2, 1e-6);
}

TEST(BeamSearch, SearchContinuesWhileBeamMayImprove) {
  BeamSearch patient({2, 1, false}, UpTo(9));
  EXPECT_EQ(StepsOf(TwoEndsAndBetter(), &patient), 4);
  EXPECT_EQ(patient.best().tokens, (Tokens{2, 4, 6}));
  EXPECT_NEAR(patient.best().score, Log(0.5 * 0.45) / 4, 1e-6);
  // With length penalty 0, the beam's score (0.225) is below both hypotheses (0.3 and 0.25).
  BeamSearch plain({2, 0, false}, UpTo(9));
  EXPECT_EQ(StepsOf(TwoEndsAndBetter(), &plain), 2);
  EXPECT_THAT(plain.best().tokens, IsEmpty());
  EXPECT_NEAR(plain.best().score, Log(0.3), 1e-6);
}

TEST(BeamSearch, LengthPenaltyFavorsLongOrShort) {
  Table table;
  table.rows[{}] = {{2, 0.55}, {kEnd, 0.45}};
  table.rows[{2}] = {{3, 0.8}, {4, 0.2}};
  table.rows[{2, 3}] = {{kEnd, 0.9}, {5, 0.1}};
  table.otherwise = {{6, 1e-4}, {7, 1e-4}};
  const auto best = [&](float penalty) {
    BeamSearch search({2, penalty, true}, UpTo(9));
    StepsOf(table, &search);
    return search.best();
  };
  EXPECT_EQ(best(1).tokens, (Tokens{2, 3}));
  EXPECT_NEAR(best(1).score, Log(0.55 * 0.8 * 0.9) / 3, 1e-6);
  EXPECT_NEAR(best(2).score, Log(0.55 * 0.8 * 0.9) / 9, 1e-6);
  EXPECT_THAT(best(-1).tokens, IsEmpty());
  EXPECT_NEAR(best(-1).score, Log(0.45), 1e-6);
}

TEST(BeamSearch, BetterHypothesisReplacesWorse) {
  Table table;
  table.rows[{}] = {{kEnd, 0.1}, {2, 0.09}, {3, 0.08}};
  table.rows[{2}] = {{kEnd, 0.9}, {4, 0.1}};
  table.rows[{3}] = {{kEnd, 0.9}, {4, 0.1}};
  table.otherwise = {{kEnd, 0.5}, {5, 0.5}};
  BeamSearch search({2, 1, false}, UpTo(2));
  StepsOf(table, &search);
  EXPECT_EQ(search.best().tokens, (Tokens{2}));
  EXPECT_NEAR(search.best().score, Log(0.09 * 0.9) / 2, 1e-6);
}

TEST(BeamSearch, StoppedBeamKeepsItsLastToken) {
  BeamSearch::Ends ends = UpTo(9);
  ends.stops = [](absl::Span<const int32_t> tokens) { return tokens.back() == 6; };
  BeamSearch search({2, 1, true}, ends);
  Table table = Misleading();
  table.rows[{3, 7}] = {{6, 1}};
  table.otherwise = {{6, 0.5}, {7, 0.5}};
  EXPECT_EQ(StepsOf(table, &search), 3);
  EXPECT_EQ(search.best().tokens, (Tokens{3, 6}));
  EXPECT_EQ(search.best().end, FinishReason::kStop);
}

// Stop strings may end more candidates than end tokens can.
TEST(BeamSearch, StopsMayReduceBeamsTemporarily) {
  BeamSearch::Ends ends = UpTo(3);
  ends.stops = [](absl::Span<const int32_t> tokens) { return tokens.back() < 8; };
  Table table;
  table.rows[{}] = {{2, 0.2}, {8, 0.19}, {3, 0.18}, {4, 0.17}, {9, 0.16}};
  table.otherwise = {{8, 0.5}, {9, 0.4}};
  BeamSearch search({2, 1, false}, ends);
  Step(table, &search);
  ASSERT_FALSE(search.done());
  EXPECT_THAT(TokensOf(search), ElementsAre(Tokens{8}));
  Step(table, &search);
  EXPECT_THAT(TokensOf(search), ElementsAre(Tokens{8, 8}, Tokens{8, 9}));
  EXPECT_EQ(search.beams()[1].parent, 0u);
  BeamSearch nothing_left({2, 1, false}, ends);
  table.rows[{}] = {{2, 0.2}, {3, 0.19}, {4, 0.18}, {5, 0.17}, {9, 0.16}};
  Step(table, &nothing_left);
  ASSERT_TRUE(nothing_left.done());
  EXPECT_EQ(nothing_left.best().tokens, (Tokens{2}));
}

TEST(BeamOptions, InvalidValueNamesFieldAndLimit) {
  EXPECT_TRUE((BeamOptions{16, -4, true}).Validate().ok());
  EXPECT_EQ((BeamOptions{17, 1, false}).Validate().message(), "beams: must be in [1, 16]; got 17");
  EXPECT_EQ((BeamOptions{0, 1, false}).Validate().message(), "beams: must be in [1, 16]; got 0");
  EXPECT_EQ((BeamOptions{2, 4.5, false}).Validate().message(),
            "length_penalty: is 4.5; must be in [-4, 4]");
  EXPECT_FALSE((BeamOptions{2, std::nanf(""), false}).Validate().ok());
}

TEST(BeamSearch, VocabularySmallerThanCandidatesWorks) {
  Table table;
  table.otherwise = {{2, 0.75}, {3, 0.25}};
  BeamSearch search({8, 1, false}, UpTo(5));
  EXPECT_EQ(StepsOf(table, &search), 5);
  EXPECT_EQ(search.best().tokens, (Tokens{2, 2, 2, 2, 2}));
}

}  // namespace
}  // namespace hearth
