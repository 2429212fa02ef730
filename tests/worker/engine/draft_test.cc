// Speculative decoding: which tokens are guessed, and how many.

#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/speculation.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GuessNextTest, GuessesTokensThatFollowedBefore) {
  EXPECT_THAT(GuessNext({1, 2, 3, 4, 5, 9, 1, 2}, 3), ElementsAre(3, 4, 5));
  EXPECT_THAT(GuessNext({1, 2, 3, 4, 5, 9, 1, 2}, 1), ElementsAre(3));
  EXPECT_THAT(GuessNext({1, 2, 3, 4, 5, 9, 1, 2}, 0), IsEmpty());
}

TEST(GuessNextTest, LongerMatchBeatsLaterMatch) {
  EXPECT_THAT(GuessNext({7, 1, 2, 3, 9, 8, 1, 2, 4, 9, 7, 1, 2}, 1), ElementsAre(3));
}

TEST(GuessNextTest, LatestOfEqualMatchesWins) {
  EXPECT_THAT(GuessNext({5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2}, 1), ElementsAre(4));
}

TEST(GuessNextTest, UnseenTokenPairGivesNothing) {
  EXPECT_THAT(GuessNext({}, 4), IsEmpty());
  EXPECT_THAT(GuessNext({1}, 4), IsEmpty());
  EXPECT_THAT(GuessNext({1, 2, 3, 1}, 4), IsEmpty());
  EXPECT_THAT(GuessNext({1, 2, 1, 3, 2, 3, 1, 1}, 4), IsEmpty());
}

TEST(GuessNextTest, RepetitionIsContinued) {
  EXPECT_THAT(GuessNext({8, 4, 4, 4}, 5), ElementsAre(4, 4, 4, 4, 4));
  EXPECT_THAT(GuessNext({1, 2, 3, 1, 2, 3, 1, 2}, 6), ElementsAre(3, 1, 2, 3, 1, 2));
}

TEST(GuessNextTest, FindsPairAtEveryPosition) {
  std::vector<int32_t> text(300);
  std::iota(text.begin(), text.end(), 0);
  for (size_t at = 1; at + 1 < text.size(); ++at) {
    std::vector<int32_t> repeats = text;
    repeats.insert(repeats.end(), {text[at - 1], text[at]});
    EXPECT_THAT(GuessNext(repeats, 1), ElementsAre(text[at + 1])) << at;
  }
}

TEST(GuessNextTest, HashCollisionsGiveEmptyGuess) {
  std::mt19937 random(3);
  std::vector<int32_t> text(200'000);
  for (int32_t& token : text) token = static_cast<int32_t>(random() % 262'144);
  EXPECT_THAT(GuessNext(text, 4), IsEmpty());
  text.insert(text.end(), {text[199'000], text[199'001]});
  EXPECT_THAT(GuessNext(text, 2), ElementsAre(text[199'002], text[199'003]));
}

TEST(DraftLengthTest, CorrectGuessesLengthenDraftToLimit) {
  DraftLength length(10);
  std::vector<uint32_t> tokens;
  for (int step = 0; step < 4; ++step) {
    tokens.push_back(length.tokens());
    length.OnStep(length.tokens(), length.tokens());
  }
  EXPECT_THAT(tokens, ElementsAre(3, 7, 10, 10));
  length.OnStep(2, 2);  // the guess was limited to 2 tokens
  EXPECT_EQ(length.tokens(), 10u);
}

TEST(DraftLengthTest, WrongGuessShortensNextDraft) {
  DraftLength length(15);
  length.OnStep(3, 3);
  length.OnStep(7, 5);
  EXPECT_EQ(length.tokens(), 6u);
  length.OnStep(6, 1);
  EXPECT_EQ(length.tokens(), 3u);
  length.OnStep(2, 1);
  EXPECT_EQ(length.tokens(), 2u);
}

TEST(DraftLengthTest, ZeroLimitDisablesDrafts) {
  DraftLength length(0);
  EXPECT_EQ(length.tokens(), 0u);
  length.OnStep(0, 0);
  EXPECT_EQ(length.tokens(), 0u);
}

// Simulates a text in which every pair of tokens occurred before and every guess is wrong.
TEST(DraftLengthTest, WrongGuessesCostFewRows) {
  DraftLength length(15);
  uint32_t drafted = 0, late = 0;
  for (int step = 0; step < 650; ++step) {
    if (step == 325) late = drafted;
    drafted += length.tokens();
    length.OnStep(length.tokens(), 0);
  }
  EXPECT_LE(drafted, 19u);
  EXPECT_EQ(drafted - late, 5u);
  // A correct guess restores the length at once.
  while (length.tokens() == 0) length.OnStep(0, 0);
  length.OnStep(1, 1);
  EXPECT_EQ(length.tokens(), 3u);
  length.OnStep(3, 0);
  length.OnStep(1, 0);
  uint32_t rest = 0;
  for (; length.tokens() == 0; ++rest) length.OnStep(0, 0);
  EXPECT_EQ(rest, DraftLength::kShortestRest);
}

TEST(SpeculationTest, StepIsLastTokenAndGuesses) {
  Speculation speculation(4);
  speculation.Append({1, 2, 3, 4, 5, 6, 1, 2});
  speculation.Guess(/*room=*/10);
  EXPECT_EQ(speculation.drafted(), DraftLength::kFirst);
  EXPECT_THAT(speculation.step(), ElementsAre(2, 3, 4, 5));
  speculation.OnStep(3, 3);
  speculation.Append({3, 4, 5, 6});
  speculation.Guess(10);
  EXPECT_THAT(speculation.step(), ElementsAre(6, 1, 2, 3, 4));
  speculation.Guess(/*room=*/1);
  EXPECT_THAT(speculation.step(), ElementsAre(6, 1));
  speculation.Guess(/*room=*/0);
  EXPECT_EQ(speculation.drafted(), 0u);
}

TEST(SpeculationTest, WrongGuessesPauseDrafting) {
  Speculation speculation(4);
  speculation.Append({1, 2, 3, 4, 5, 6, 1, 2});
  for (uint32_t length = DraftLength::kFirst; length > 0; length /= 2) {
    speculation.Guess(10);
    ASSERT_EQ(speculation.drafted(), length);
    speculation.OnStep(length, 0);
  }
  speculation.Guess(10);
  EXPECT_EQ(speculation.drafted(), 0u);
}

}  // namespace
}  // namespace hearth
