#include "worker/scheduler.h"

#include <map>
#include <random>
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
  while (const std::optional<SequenceId> next = scheduler->Candidate()) {
    scheduler->Admit(*next);
    admitted.push_back(*next);
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

}  // namespace
}  // namespace hearth
