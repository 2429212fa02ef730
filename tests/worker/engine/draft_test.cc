// Guesses of what a text goes on with: where they come from, and how long they are.

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/engine/speculation.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> GuessOf(const std::vector<int32_t>& text, size_t most) {
  NgramDraft draft;
  draft.Append(text);
  return draft.Guess(most);
}

TEST(NgramDraftTest, GoesOnAsTheTextDidWhereItsLastTokensStoodBefore) {
  EXPECT_THAT(GuessOf({1, 2, 3, 4, 5, 9, 1, 2}, 3), ElementsAre(3, 4, 5));
  EXPECT_THAT(GuessOf({1, 2, 3, 4, 5, 9, 1, 2}, 1), ElementsAre(3));
  EXPECT_THAT(GuessOf({1, 2, 3, 4, 5, 9, 1, 2}, 0), IsEmpty());
}

TEST(NgramDraftTest, MoreAgreeingTokensCountMoreThanALaterPlace) {
  EXPECT_THAT(GuessOf({7, 1, 2, 3, 9, 8, 1, 2, 4, 9, 7, 1, 2}, 1), ElementsAre(3));
}

TEST(NgramDraftTest, LatestOfEqualMatchesCounts) {
  EXPECT_THAT(GuessOf({5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2}, 1), ElementsAre(4));
}

TEST(NgramDraftTest, KnowsNothingOfANewPair) {
  EXPECT_THAT(GuessOf({}, 4), IsEmpty());
  EXPECT_THAT(GuessOf({1}, 4), IsEmpty());
  EXPECT_THAT(GuessOf({1, 2, 3, 1}, 4), IsEmpty());
  EXPECT_THAT(GuessOf({1, 2, 1, 3, 2, 3, 1, 1}, 4), IsEmpty());
}

TEST(NgramDraftTest, ATextThatRepeatsItselfGoesOnRepeating) {
  EXPECT_THAT(GuessOf({8, 4, 4, 4}, 5), ElementsAre(4, 4, 4, 4, 4));
  EXPECT_THAT(GuessOf({1, 2, 3, 1, 2, 3, 1, 2}, 6), ElementsAre(3, 1, 2, 3, 1, 2));
}

TEST(NgramDraftTest, TextAppendedInPartsIsOneText) {
  std::mt19937 random(7);
  std::vector<int32_t> text;
  NgramDraft parts;
  for (int step = 0; step < 300; ++step) {
    std::vector<int32_t> part(random() % 4);
    for (int32_t& token : part) token = static_cast<int32_t>(random() % 5);
    parts.Append(part);
    text.insert(text.end(), part.begin(), part.end());
    ASSERT_EQ(parts.Guess(6), GuessOf(text, 6)) << step;
    ASSERT_EQ(parts.tokens(), text.size());
  }
}

// The pairs that share a hash are many here; a guess still follows a pair that is equal.
TEST(NgramDraftTest, IsOnlyMisledByEqualPairs) {
  NgramDraft draft;
  std::mt19937 random(3);
  std::vector<int32_t> text(200'000);
  for (int32_t& token : text) token = static_cast<int32_t>(random() % 262'144);
  draft.Append(text);
  EXPECT_THAT(draft.Guess(4), IsEmpty());
  draft.Append({text[199'000], text[199'001]});
  EXPECT_THAT(draft.Guess(2), ElementsAre(text[199'002], text[199'003]));
}

TEST(DraftLengthTest, GrowsWhileGuessesAreRightAndNoFurtherThanAllowed) {
  DraftLength length(10);
  std::vector<uint32_t> tokens;
  for (int step = 0; step < 4; ++step) {
    tokens.push_back(length.tokens());
    length.OnStep(length.tokens(), length.tokens());
  }
  EXPECT_THAT(tokens, ElementsAre(3, 7, 10, 10));
  length.OnStep(2, 2);  // a step had no room for more
  EXPECT_EQ(length.tokens(), 10u);
}

TEST(DraftLengthTest, ReachesATokenFurtherThanWasRightOrHalfAsFar) {
  DraftLength length(15);
  length.OnStep(3, 3);
  length.OnStep(7, 5);
  EXPECT_EQ(length.tokens(), 6u);
  length.OnStep(6, 1);
  EXPECT_EQ(length.tokens(), 3u);
  length.OnStep(2, 1);
  EXPECT_EQ(length.tokens(), 2u);
}

TEST(DraftLengthTest, NoneIsOff) {
  DraftLength length(0);
  EXPECT_EQ(length.tokens(), 0u);
  length.OnStep(0, 0);
  EXPECT_EQ(length.tokens(), 0u);
}

// Of a text where every pair was seen before and every guess is wrong.
TEST(DraftLengthTest, CostsOneRowInSixtyFiveStepsWhereNothingIsRight) {
  DraftLength length(15);
  uint32_t drafted = 0, late = 0;
  for (int step = 0; step < 650; ++step) {
    if (step == 325) late = drafted;
    drafted += length.tokens();
    length.OnStep(length.tokens(), 0);
  }
  EXPECT_LE(drafted, 19u);
  EXPECT_EQ(drafted - late, 5u);
  // And comes back at once where something is.
  while (length.tokens() == 0) length.OnStep(0, 0);
  length.OnStep(1, 1);
  EXPECT_EQ(length.tokens(), 3u);
  length.OnStep(3, 0);
  length.OnStep(1, 0);
  uint32_t rest = 0;
  for (; length.tokens() == 0; ++rest) length.OnStep(0, 0);
  EXPECT_EQ(rest, DraftLength::kShortestRest);
}

TEST(SpeculationTest, AStepIsTheLastTokenAndWhatMayFollow) {
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

TEST(SpeculationTest, RestsWhereItsGuessesAreWrong) {
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
