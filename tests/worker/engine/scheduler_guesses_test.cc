// How the rows of a batch are divided among guessed tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "worker/engine/scheduler.h"

namespace hearth {
namespace {

constexpr uint32_t kRows = 128, kAlone = 512;

// Returns a scheduler with `decoding` sequences that decode and, if prompt > 0, a sequence with
// `prompt` tokens to prefill.
Scheduler With(uint32_t decoding, uint32_t prompt = 0) {
  Scheduler scheduler(decoding + 1, 0);
  for (SequenceId id = 1; id <= decoding; ++id) {
    scheduler.Enqueue(id);
    scheduler.Admit(id);
    scheduler.StartDecode(id);
  }
  if (prompt > 0) {
    scheduler.Enqueue(99);
    scheduler.Admit(99);
    scheduler.StartPrefill(99, prompt);
  }
  return scheduler;
}

std::map<SequenceId, uint32_t> TokensOf(Scheduler scheduler, const Scheduler::Guessed& guessed,
                                        uint32_t rows = kRows) {
  std::map<SequenceId, uint32_t> tokens;
  for (const PlannedStep& planned : scheduler.NextBatch(rows, kAlone, guessed))
    tokens[planned.id] = planned.tokens;
  return tokens;
}

using Tokens = std::map<SequenceId, uint32_t>;

TEST(SchedulerGuessesTest, GuessesFillFreeRows) {
  EXPECT_EQ(TokensOf(With(1), {{1, 7}}), (Tokens{{1, 8}}));
  EXPECT_EQ(TokensOf(With(3), {{1, 2}, {3, 1}}), (Tokens{{1, 3}, {2, 1}, {3, 2}}));
  EXPECT_EQ(TokensOf(With(2), {}), (Tokens{{1, 1}, {2, 1}}));
}

TEST(SchedulerGuessesTest, GuessesShareRowsEqually) {
  EXPECT_EQ(TokensOf(With(1), {{1, 30}}), (Tokens{{1, 2 * kRowsWithGuesses}}));
  EXPECT_EQ(TokensOf(With(2), {{1, 15}}), (Tokens{{1, kRowsWithGuesses - 1}, {2, 1}}));
  EXPECT_EQ(TokensOf(With(3), {{1, 7}, {2, 7}, {3, 7}}), (Tokens{{1, 3}, {2, 3}, {3, 2}}));
  EXPECT_EQ(TokensOf(With(3), {{1, 7}, {2, 1}}), (Tokens{{1, 5}, {2, 2}, {3, 1}}));
}

TEST(SchedulerGuessesTest, GuessesYieldToDecodingAndPrompts) {
  Scheduler::Guessed all;
  for (SequenceId id = 1; id <= 20; ++id) all[id] = 7;
  for (const uint32_t decoding : {8u, 9u, 20u}) {
    for (const auto& [id, tokens] : TokensOf(With(decoding), all)) EXPECT_EQ(tokens, 1u) << id;
  }
  EXPECT_EQ(TokensOf(With(2, 500), all), (Tokens{{1, 1}, {2, 1}, {99, kRows - 2}}));
  // The last step of a prompt leaves rows for guessed tokens.
  EXPECT_EQ(TokensOf(With(2, 3), all), (Tokens{{1, 3}, {2, 2}, {99, 3}}));
}

TEST(SchedulerGuessesTest, GuessesTakeOnlyFreeRows) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    const uint32_t decoding = 1 + random() % 10, rows = 1 + random() % 20;
    const uint32_t prompt = random() % 3 == 0 ? random() % 30 : 0;
    Scheduler::Guessed guessed;
    for (SequenceId id = 1; id <= decoding; ++id) {
      if (random() % 2 == 0) guessed[id] = 1 + random() % 15;
    }
    const Tokens plain = TokensOf(With(decoding, prompt), {}, rows);
    uint32_t before = 0, all = 0;
    const Tokens tokens = TokensOf(With(decoding, prompt), guessed, rows);
    ASSERT_EQ(tokens.size(), plain.size());
    for (const auto& [id, count] : plain) before += count;
    for (const auto& [id, count] : tokens) {
      const auto wanted = guessed.find(id);
      EXPECT_GE(count, plain.at(id));
      EXPECT_LE(count, plain.at(id) + (wanted == guessed.end() ? 0 : wanted->second));
      all += count;
    }
    const uint32_t most = decoding == 1 ? 2 * kRowsWithGuesses : kRowsWithGuesses;
    EXPECT_LE(all, std::max(before, std::min(rows, most)));
  }
}

}  // namespace
}  // namespace hearth
