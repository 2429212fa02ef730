#include "worker/engine/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace hearth {
namespace {

std::vector<SequenceId> Steps(Scheduler* scheduler, int count) {
  std::vector<SequenceId> ids;
  for (int i = 0; i < count; ++i) {
    const std::optional<PlannedStep> step = scheduler->Next();
    ids.push_back(step.has_value() ? step->id : 0);
  }
  return ids;
}

// Places for all that there are places for.
std::vector<SequenceId> Admit(Scheduler* scheduler) {
  std::vector<SequenceId> admitted;
  for (;;) {
    const std::vector<SequenceId> candidates = scheduler->Candidates();
    if (candidates.empty()) return admitted;
    scheduler->Admit(candidates.front());
    admitted.push_back(candidates.front());
  }
  return admitted;
}

TEST(SchedulerTest, AdmitsInOrderOfArrivalUpToTheLimit) {
  Scheduler scheduler(2, 8);
  for (SequenceId id : {1, 2, 3, 4}) EXPECT_TRUE(scheduler.Enqueue(id));
  EXPECT_EQ(Admit(&scheduler), (std::vector<SequenceId>{1, 2}));
  EXPECT_EQ(scheduler.queued(), 2u);
  EXPECT_TRUE(Admit(&scheduler).empty());
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), std::vector<SequenceId>{3});
}

TEST(SchedulerTest, RefusesWhenTheQueueIsFullAndCountsFreePlacesAsRoom) {
  Scheduler scheduler(2, 1);
  for (SequenceId id : {1, 2, 3}) EXPECT_TRUE(scheduler.Enqueue(id));
  EXPECT_FALSE(scheduler.Enqueue(4));
  Admit(&scheduler);
  EXPECT_FALSE(scheduler.Enqueue(4));
  scheduler.Remove(3);  // the queued one
  EXPECT_TRUE(scheduler.Enqueue(4));
  EXPECT_FALSE(scheduler.Enqueue(5));
}

TEST(SchedulerTest, AQueueOfZeroStillServesFreePlaces) {
  Scheduler scheduler(1, 0);
  EXPECT_TRUE(scheduler.Enqueue(1));
  EXPECT_FALSE(scheduler.Enqueue(2));
  Admit(&scheduler);
  EXPECT_FALSE(scheduler.Enqueue(2));
  scheduler.Remove(1);
  EXPECT_TRUE(scheduler.Enqueue(2));
}

TEST(SchedulerTest, HasNoStepForSequencesThatAreIdleOrQueued) {
  Scheduler scheduler(1, 4);
  scheduler.Enqueue(1);
  scheduler.Enqueue(2);
  EXPECT_FALSE(scheduler.Next().has_value());
  Admit(&scheduler);
  EXPECT_FALSE(scheduler.Next().has_value());
}

TEST(SchedulerTest, PausedSequenceKeepsItsPlaceAndGetsNoSteps) {
  Scheduler scheduler(3, 4);
  for (SequenceId id : {1, 2, 3}) scheduler.Enqueue(id);
  for (SequenceId id : Admit(&scheduler)) scheduler.StartDecode(id);
  EXPECT_EQ(Steps(&scheduler, 1), std::vector<SequenceId>{1});
  scheduler.Pause(2);
  scheduler.Pause(3);
  EXPECT_EQ(Steps(&scheduler, 2), (std::vector<SequenceId>{1, 1}));
  EXPECT_EQ(scheduler.NextBatch(8, 8).size(), 1u);
  EXPECT_EQ(scheduler.running(), 3u);
  scheduler.Remove(3);
  for (SequenceId id : {1, 2, 3}) scheduler.Resume(id);
  EXPECT_EQ(scheduler.running(), 2u);
  EXPECT_EQ(Steps(&scheduler, 4), (std::vector<SequenceId>{1, 2, 1, 2}));
}

TEST(SchedulerTest, PrefillingSequencesTakeTurns) {
  Scheduler scheduler(3, 4);
  for (SequenceId id : {1, 2, 3}) scheduler.Enqueue(id);
  for (SequenceId id : Admit(&scheduler)) scheduler.StartPrefill(id);
  EXPECT_EQ(Steps(&scheduler, 6), (std::vector<SequenceId>{1, 2, 3, 1, 2, 3}));
}

TEST(SchedulerTest, DecodesEverySequenceOnceBetweenTwoPrefillSteps) {
  Scheduler scheduler(4, 4);
  for (SequenceId id : {1, 2, 3, 4}) scheduler.Enqueue(id);
  Admit(&scheduler);
  scheduler.StartDecode(1);
  scheduler.StartDecode(2);
  scheduler.StartPrefill(3);
  scheduler.StartPrefill(4);
  EXPECT_EQ(Steps(&scheduler, 9), (std::vector<SequenceId>{3, 1, 2, 4, 1, 2, 3, 1, 2}));
}

TEST(SchedulerTest, DecodesRoundAfterRoundWhenNothingPrefills) {
  Scheduler scheduler(2, 2);
  scheduler.Enqueue(1);
  scheduler.Enqueue(2);
  for (SequenceId id : Admit(&scheduler)) scheduler.StartDecode(id);
  EXPECT_EQ(Steps(&scheduler, 5), (std::vector<SequenceId>{1, 2, 1, 2, 1}));
}

TEST(SchedulerTest, ARemovedSequenceTakesNoStepEvenInTheMiddleOfARound) {
  Scheduler scheduler(3, 3);
  for (SequenceId id : {1, 2, 3}) scheduler.Enqueue(id);
  for (SequenceId id : Admit(&scheduler)) scheduler.StartDecode(id);
  EXPECT_EQ(Steps(&scheduler, 1), std::vector<SequenceId>{1});
  scheduler.Remove(2);
  EXPECT_EQ(Steps(&scheduler, 3), (std::vector<SequenceId>{3, 1, 3}));
  scheduler.Remove(99);  // unknown: nothing happens
  EXPECT_EQ(scheduler.running(), 2u);
}

TEST(SchedulerTest, ForksHaveTheirPlacesFromTheBeginning) {
  Scheduler scheduler(4, 8);
  scheduler.Enqueue(1, 3);
  scheduler.Enqueue(2, 2);
  EXPECT_EQ(Admit(&scheduler), std::vector<SequenceId>{1}) << "two places are not there";
  EXPECT_EQ(scheduler.running(), 3u);
  scheduler.StartPrefill(1);
  scheduler.StartDecode(1);
  scheduler.Fork(1, 11);
  scheduler.Remove(11);
  EXPECT_EQ(Admit(&scheduler), std::vector<SequenceId>{2}) << "one of it, one that was free";
  scheduler.Fork(1, 12);
  EXPECT_EQ(scheduler.running(), 4u);
  scheduler.Remove(1);
  EXPECT_EQ(Steps(&scheduler, 2), (std::vector<SequenceId>{12, 12}));
  scheduler.Remove(2);  // with the place of its fork
  EXPECT_EQ(scheduler.running(), 1u);
}

using Ids = std::vector<SequenceId>;

TEST(SchedulerTest, OneThatFindsNoRoomIsOvertakenAndNotWithoutEnd) {
  Scheduler scheduler(2, 100);
  for (SequenceId id = 1; id <= 30; ++id) scheduler.Enqueue(id);
  SequenceId next = 2;  // who is in front never finds room
  for (uint32_t i = 0; i < kMaxOvertaken; ++i) {
    const Ids candidates = scheduler.Candidates();
    ASSERT_EQ((Ids{candidates[0], candidates[1]}), (Ids{1, next}));
    scheduler.Admit(next);
    scheduler.Remove(next++);
  }
  EXPECT_EQ(scheduler.Candidates(), Ids{1}) << "who waits so long is waited for";
  scheduler.Admit(1);
  EXPECT_EQ(scheduler.Candidates().size(), 30u - next + 1);
}

TEST(SchedulerTest, OneThatNeedsSeveralPlacesIsOvertakenLikewise) {
  Scheduler scheduler(2, 100);
  for (SequenceId id : {1, 2}) scheduler.Enqueue(id);
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2}));
  scheduler.Enqueue(3, 2);
  for (SequenceId id = 4; id < 40; ++id) scheduler.Enqueue(id);
  uint32_t overtaken = 0;
  for (SequenceId running = 2; overtaken <= kMaxOvertaken; ++overtaken) {
    scheduler.Remove(running);
    const Ids admitted = Admit(&scheduler);
    if (admitted.empty()) break;
    running = admitted.front();
  }
  EXPECT_EQ(overtaken, kMaxOvertaken);
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), Ids{3});
}

TEST(SchedulerTest, TenantsOvertakeInTurn) {
  Scheduler scheduler(8, 100);
  scheduler.Enqueue(1, 1, "large");
  for (SequenceId id : {2, 3, 4, 5}) scheduler.Enqueue(id, 1, "many");
  for (SequenceId id : {6, 7}) scheduler.Enqueue(id, 1, "few");
  Ids overtaking;
  while (scheduler.Candidates().size() > 1) {
    overtaking.push_back(scheduler.Candidates()[1]);
    scheduler.Admit(overtaking.back());
  }
  EXPECT_EQ(overtaking, (Ids{2, 6, 3, 7, 4, 5}));
}

TEST(SchedulerTest, TheTenantWithTheFewestPlacesIsNext) {
  Scheduler scheduler(4, 100);
  for (SequenceId id = 1; id <= 10; ++id) scheduler.Enqueue(id, 1, "many");
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2, 3, 4})) << "a lone tenant has all";
  for (SequenceId id : {11, 12}) scheduler.Enqueue(id, 1, "few");
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), Ids{11});
  scheduler.Remove(2);
  EXPECT_EQ(Admit(&scheduler), Ids{}) << "both have some, and one place is a third tenant's";
  scheduler.Remove(3);
  EXPECT_EQ(Admit(&scheduler), Ids{5}) << "they have one each, and this one's last turn is older";
  scheduler.Enqueue(13, 1, "third");
  EXPECT_EQ(Admit(&scheduler), Ids{13});
}

TEST(SchedulerTest, SequencesWithForksCountWithAllTheirPlaces) {
  Scheduler scheduler(9, 100);
  scheduler.Enqueue(1, 4, "wide");
  for (SequenceId id : {2, 3, 4}) scheduler.Enqueue(id, 1, "few");
  scheduler.Enqueue(5, 4, "wide");
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2, 3, 4})) << "of the two places left one is kept";
  scheduler.StartDecode(1);
  scheduler.Fork(1, 11);
  scheduler.Remove(1);
  scheduler.Enqueue(6, 1, "few");
  EXPECT_EQ(Admit(&scheduler), Ids{5}) << "of its four places one is used, and three are free";
}

TEST(SchedulerTest, InAFullQueueTheNewestOfTheLargestTenantGivesWay) {
  Scheduler scheduler(2, 3);
  for (SequenceId id = 1; id <= 5; ++id) EXPECT_TRUE(scheduler.Enqueue(id, 1, "many"));
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2}));
  std::optional<SequenceId> gives_way;
  EXPECT_FALSE(scheduler.Enqueue(6, 1, "many", &gives_way));
  EXPECT_TRUE(scheduler.Enqueue(7, 1, "few", &gives_way));
  EXPECT_EQ(gives_way, 5u);
  EXPECT_TRUE(scheduler.Enqueue(8, 1, "few", &gives_way));
  EXPECT_EQ(gives_way, 4u) << "it has four, and this one would have two";
  EXPECT_FALSE(scheduler.Enqueue(9, 1, "few", &gives_way)) << "it would have as many as the other";
  EXPECT_FALSE(scheduler.Enqueue(9, 1, "third")) << "where nobody may give way";
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), Ids{7});
}

// Random arrivals, steps and departures: limits hold, nobody waits for more than one prefill step
// between two decoded tokens, and every prefilling sequence keeps moving.
TEST(SchedulerTest, KeepsItsInvariantsUnderRandomUse) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint32_t max_running = 1 + random() % 5, max_queued = random() % 6;
    Scheduler scheduler(max_running, max_queued);
    std::map<SequenceId, int> prefill_left, decode_left, prefills_since_decode;
    SequenceId next_id = 1;
    for (int i = 0; i < 2000; ++i) {
      if (random() % 4 == 0) {
        const bool room = scheduler.queued() < max_queued + max_running - scheduler.running();
        EXPECT_EQ(scheduler.Enqueue(next_id), room);
        ++next_id;
      }
      for (SequenceId id : Admit(&scheduler)) {
        prefill_left[id] = 1 + random() % 6;
        scheduler.StartPrefill(id);
      }
      ASSERT_LE(scheduler.running(), max_running);
      const std::optional<PlannedStep> step = scheduler.Next();
      ASSERT_EQ(step.has_value(), scheduler.running() > 0);
      if (!step.has_value()) continue;
      if (step->kind == StepKind::kPrefill) {
        for (auto& [id, since] : prefills_since_decode) ASSERT_LE(++since, 1) << id;
        if (--prefill_left.at(step->id) > 0) continue;
        prefill_left.erase(step->id);
        decode_left[step->id] = 1 + random() % 8;
        scheduler.StartDecode(step->id);
      } else {
        prefills_since_decode[step->id] = 0;
        if (--decode_left.at(step->id) > 0) continue;
        decode_left.erase(step->id);
        prefills_since_decode.erase(step->id);
        scheduler.Remove(step->id);
      }
    }
  }
}

// Of a batch: who decodes, then "id:tokens" of who prefills.
std::string BatchText(const std::vector<PlannedStep>& batch) {
  std::string text;
  for (const PlannedStep& part : batch) {
    text += (text.empty() ? "" : " ") + std::to_string(part.id);
    if (part.kind == StepKind::kPrefill) text += ":" + std::to_string(part.tokens);
  }
  return text;
}

struct Prefilling {
  SequenceId id;
  uint32_t tokens;
  std::string tenant;
  bool promised = false;
};

// With ids 1 to `decoding` decoding, and these prefilling.
Scheduler Batching(SequenceId decoding, const std::vector<Prefilling>& prefilling) {
  Scheduler scheduler(32, 0);
  for (SequenceId id = 1; id <= decoding; ++id) scheduler.Enqueue(id);
  for (const Prefilling& one : prefilling) scheduler.Enqueue(one.id);
  Admit(&scheduler);
  for (SequenceId id = 1; id <= decoding; ++id) scheduler.StartDecode(id);
  for (const Prefilling& one : prefilling) {
    scheduler.StartPrefill(one.id, one.tokens, one.tenant, one.promised);
  }
  return scheduler;
}

TEST(SchedulerBatchTest, EveryStepDecodesAllAndPrefillsWithTheRowsThatAreLeft) {
  Scheduler scheduler = Batching(3, {{9, 300, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 2 3 9:125");
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 2 3 9:125");
  scheduler.Remove(2);
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 3 9:50");
  scheduler.StartDecode(9);
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 3 9");
}

TEST(SchedulerBatchTest, StepWithoutDecodingIsLarge) {
  Scheduler scheduler = Batching(0, {{9, 1000, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "9:512");
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "9:488");
  scheduler.Remove(9);
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "");
}

TEST(SchedulerBatchTest, HoweverManyDecodePromptsGoOn) {
  Scheduler scheduler = Batching(20, {{99, 100, "a"}});
  EXPECT_EQ(scheduler.NextBatch(16, 512).back().tokens, 8u);
  EXPECT_EQ(scheduler.NextBatch(1, 512).back().tokens, 1u);
}

TEST(SchedulerBatchTest, AShortPromptIsNotStuckBehindALongOne) {
  Scheduler scheduler = Batching(0, {{1, 5000, "a"}, {2, 40, "a"}, {3, 5000, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 300)), "1:260 2:40");
  scheduler.StartDecode(2);
  EXPECT_EQ(BatchText(scheduler.NextBatch(101, 300)), "2 1:100");
}

TEST(SchedulerBatchTest, PromptsThatAreAlikeEndOneAfterTheOther) {
  Scheduler scheduler = Batching(0, {{1, 100, "a"}, {2, 100, "a"}, {3, 100, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(60, 60)), "1:60");
  EXPECT_EQ(BatchText(scheduler.NextBatch(60, 60)), "1:40 2:20");
  scheduler.StartDecode(1);
  EXPECT_EQ(BatchText(scheduler.NextBatch(61, 60)), "1 2:60");
}

TEST(SchedulerBatchTest, ALongPromptIsNotStarvedByShortOnes) {
  Scheduler scheduler = Batching(0, {{1, 999, "a"}, {2, 70, "a"}, {3, 50, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 128)), "1:64 2:14 3:50");
}

// Neither the oldest nor the shortest: others, in other workers too, wait for it.
TEST(SchedulerBatchTest, PromisedSequencesShareTheHalfOfTheOldest) {
  Scheduler scheduler = Batching(
      0, {{1, 999, "a"}, {2, 500, "a"}, {3, 600, "a", true}, {4, 600, "a", true}, {5, 9, "b"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 265)), "1:64 2:128 3:64 5:9");
  for (const SequenceId id : {1, 5}) scheduler.Remove(id);
  EXPECT_EQ(BatchText(scheduler.NextBatch(8, 8)), "2:4 3:4");
  scheduler.Remove(2);
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 128)), "3:128");
}

TEST(SchedulerBatchTest, TenantsShareAlikeHowManyPromptsEachMayHave) {
  Scheduler scheduler =
      Batching(0, {{1, 999, "a"}, {2, 999, "a"}, {3, 999, "a"}, {4, 999, "a"}, {5, 999, "b"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 400)), "1:200 5:200");
}

TEST(SchedulerBatchTest, PartsAreNotTooSmallAndWhoHadNoneIsFirst) {
  Scheduler scheduler = Batching(0, {{1, 99, "a"}, {2, 99, "b"}, {3, 99, "c"}, {4, 99, "d"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(16, 40)), "1:16 2:16 3:8");
  EXPECT_EQ(BatchText(scheduler.NextBatch(16, 40)), "1:16 2:8 4:16");
}

// Random arrivals and departures: each batch is what the invariants say, and all get to their end.
TEST(SchedulerBatchTest, KeepsItsInvariantsUnderRandomUse) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint32_t rows = 1 + random() % 40, alone = rows + random() % 100;
    const uint32_t places = 1 + random() % 6;
    Scheduler scheduler(places, 4);
    size_t most = 0;  // rows of a batch
    std::map<SequenceId, uint32_t> prefill_left, decode_left, passed_over;
    std::map<SequenceId, std::string> tenants;
    SequenceId next_id = 1;
    for (int i = 0; i < 1000; ++i) {
      if (random() % 4 == 0) scheduler.Enqueue(next_id++);
      for (SequenceId id : Admit(&scheduler)) {
        prefill_left[id] = 1 + random() % 200;
        tenants[id] = std::string(1, 'a' + random() % 3);
        scheduler.StartPrefill(id, prefill_left[id], tenants[id], /*promised=*/random() % 2 == 0);
      }
      const size_t decodes = decode_left.size();
      uint32_t wanted = 0, prefilled = 0;
      for (const auto& [id, left] : prefill_left) wanted += left;
      std::map<SequenceId, uint32_t> seen;
      for (const PlannedStep& part : scheduler.NextBatch(rows, alone)) {
        ASSERT_EQ(seen.count(part.id), 0u);
        ASSERT_GE(part.tokens, 1u);
        seen[part.id] = part.tokens;
        if (part.kind == StepKind::kPrefill) prefilled += part.tokens;
        ASSERT_EQ(part.kind == StepKind::kDecode, decode_left.count(part.id) == 1);
      }
      for (const auto& [id, left] : decode_left) ASSERT_EQ(seen.count(id), 1u);
      const uint32_t least = std::max<uint32_t>(1, rows / 2);
      const uint32_t may =
          decodes == 0 ? alone : std::max<uint32_t>(rows - std::min<size_t>(rows, decodes), least);
      ASSERT_EQ(prefilled, std::min(wanted, may));
      most = std::max(most, decodes + prefilled);
      for (const auto& [id, tokens] : seen) {
        if (decode_left.count(id) == 1) {
          if (--decode_left[id] > 0) continue;
          decode_left.erase(id);
          scheduler.Remove(id);
        } else if ((prefill_left[id] -= tokens) == 0) {
          prefill_left.erase(id);
          decode_left[id] = 1 + random() % 8;
          scheduler.StartDecode(id);
        }
      }
      std::set<std::string> older;
      for (const auto& [id, left] : prefill_left) {
        if (!older.insert(tenants[id]).second) continue;
        passed_over[id] = seen.count(id) == 1 ? 0 : passed_over[id] + 1;
        ASSERT_LE(passed_over[id], 3u) << "the one before it, and the other tenants";
      }
    }
    EXPECT_LE(most, Scheduler::MostRows(rows, alone, places));
  }
}

}  // namespace
}  // namespace hearth
