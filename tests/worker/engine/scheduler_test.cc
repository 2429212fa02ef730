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

// Admits sequences as long as enough places are free. Returns their ids in order.
std::vector<SequenceId> Admit(Scheduler* scheduler) {
  std::vector<SequenceId> admitted;
  while (const std::optional<SequenceId> next = scheduler->Candidate()) {
    scheduler->Admit(*next);
    admitted.push_back(*next);
  }
  return admitted;
}

TEST(SchedulerTest, AdmitsInOrderUpToLimit) {
  Scheduler scheduler(2, 8);
  for (SequenceId id : {1, 2, 3, 4}) EXPECT_TRUE(scheduler.Enqueue(id));
  EXPECT_EQ(Admit(&scheduler), (std::vector<SequenceId>{1, 2}));
  EXPECT_EQ(scheduler.queued(), 2u);
  EXPECT_TRUE(Admit(&scheduler).empty());
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), std::vector<SequenceId>{3});
}

TEST(SchedulerTest, FreePlacesExtendTheQueue) {
  Scheduler scheduler(2, 1);
  for (SequenceId id : {1, 2, 3}) EXPECT_TRUE(scheduler.Enqueue(id));
  EXPECT_FALSE(scheduler.Enqueue(4));
  Admit(&scheduler);
  EXPECT_FALSE(scheduler.Enqueue(4));
  scheduler.Remove(3);  // sequence 3 was queued
  EXPECT_TRUE(scheduler.Enqueue(4));
  EXPECT_FALSE(scheduler.Enqueue(5));
}

TEST(SchedulerTest, ZeroQueueServesFreePlaces) {
  Scheduler scheduler(1, 0);
  EXPECT_TRUE(scheduler.Enqueue(1));
  EXPECT_FALSE(scheduler.Enqueue(2));
  Admit(&scheduler);
  EXPECT_FALSE(scheduler.Enqueue(2));
  scheduler.Remove(1);
  EXPECT_TRUE(scheduler.Enqueue(2));
}

TEST(SchedulerTest, IdleSequencesGetNoRows) {
  Scheduler scheduler(1, 4);
  scheduler.Enqueue(1);
  scheduler.Enqueue(2);
  EXPECT_TRUE(scheduler.NextBatch(8, 8).empty());
  Admit(&scheduler);
  EXPECT_TRUE(scheduler.NextBatch(8, 8).empty());
}

TEST(SchedulerTest, ForkPlacesAreReservedAtAdmission) {
  Scheduler scheduler(4, 8);
  scheduler.Enqueue(1, 3);
  scheduler.Enqueue(2, 2);
  EXPECT_EQ(Admit(&scheduler), std::vector<SequenceId>{1}) << "sequence 2 needs two free places";
  EXPECT_EQ(scheduler.running(), 3u);
  scheduler.StartDecode(1);
  scheduler.Fork(1, 10);
  scheduler.RemoveFork(1, 10);
  EXPECT_EQ(scheduler.running(), 3u) << "the fork's place stays reserved for the next fork";
  scheduler.Fork(1, 11);
  scheduler.Remove(11);
  EXPECT_EQ(Admit(&scheduler), std::vector<SequenceId>{2})
      << "one place of sequence 1 and one free place";
  scheduler.Fork(1, 12);
  EXPECT_EQ(scheduler.running(), 4u);
  scheduler.Remove(1);
  EXPECT_EQ(scheduler.NextBatch(8, 8).size(), 1u);
  scheduler.Remove(2);  // also frees the place reserved for its fork
  EXPECT_EQ(scheduler.running(), 1u);
}

using Ids = std::vector<SequenceId>;

TEST(SchedulerTest, SequenceNeedingManyPlacesIsNotOvertaken) {
  Scheduler scheduler(2, 100);
  for (SequenceId id : {1, 2}) scheduler.Enqueue(id);
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2}));
  scheduler.Enqueue(3, 2);
  scheduler.Enqueue(4);
  scheduler.Remove(2);
  EXPECT_EQ(Admit(&scheduler), Ids{});
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), Ids{3});
}

// `held`: bytes by sequence id.
std::optional<SequenceId> VictimFor(const Scheduler& scheduler, SequenceId id,
                                    const std::map<SequenceId, uint64_t>& held) {
  return scheduler.Victim(id, [&](SequenceId other) {
    const auto bytes = held.find(other);
    return bytes == held.end() ? uint64_t{0} : bytes->second;
  });
}

TEST(SchedulerTest, PreemptionTakesLargestTenantsYoungest) {
  Scheduler scheduler(8, 8);
  scheduler.Enqueue(1, 1, "few");
  for (SequenceId id : {2, 3, 5}) scheduler.Enqueue(id, 1, "many");
  for (SequenceId id : {4, 6, 7}) scheduler.Enqueue(id, 1, "few");
  for (SequenceId id : Admit(&scheduler)) scheduler.StartDecode(id);
  const std::map<SequenceId, uint64_t> held = {{1, 900}, {2, 10}, {3, 20},
                                               {4, 15},  {5, 10}, {6, 5}};
  EXPECT_EQ(VictimFor(scheduler, 1, held), 5u) << "tenant many holds 40 bytes, tenant few 20";
  EXPECT_EQ(VictimFor(scheduler, 3, held), 6u) << "among younger sequences, few holds 20, many 10";
  EXPECT_EQ(VictimFor(scheduler, 5, held), 6u);
  EXPECT_EQ(VictimFor(scheduler, 6, held), std::nullopt) << "sequence 7 holds no memory";
  EXPECT_EQ(VictimFor(scheduler, 7, held), std::nullopt);
  scheduler.Requeue(6, 1);
  EXPECT_EQ(VictimFor(scheduler, 5, held), std::nullopt) << "a queued sequence holds no memory";
}

TEST(SchedulerTest, PreemptedSequenceIsRequeuedFirst) {
  Scheduler scheduler(2, 3);
  for (SequenceId id : {1, 2, 3, 4}) scheduler.Enqueue(id);
  for (SequenceId id : Admit(&scheduler)) scheduler.StartDecode(id);
  scheduler.Requeue(2, 1);
  EXPECT_EQ(scheduler.running(), 1u);
  EXPECT_EQ(scheduler.queued(), 3u);
  EXPECT_EQ(scheduler.NextBatch(8, 8).size(), 1u);
  EXPECT_EQ(scheduler.Candidate(), 2u);
  EXPECT_TRUE(scheduler.Enqueue(5));
  EXPECT_FALSE(scheduler.Enqueue(6)) << "the preempted sequence waits for the free place";
  for (const SequenceId newest : {5, 4, 3}) {
    std::optional<SequenceId> dropped;
    scheduler.Enqueue(newest + 10, 1, std::string(1, static_cast<char>('a' + newest)), &dropped);
    EXPECT_EQ(dropped, newest);
  }
  EXPECT_EQ(scheduler.Candidate(), 13u) << "a tenant without places is next";
}

TEST(SchedulerTest, TenantWithFewestPlacesIsNext) {
  Scheduler scheduler(4, 100);
  for (SequenceId id = 1; id <= 10; ++id) scheduler.Enqueue(id, 1, "many");
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2, 3, 4})) << "a single tenant may use all places";
  for (SequenceId id : {11, 12}) scheduler.Enqueue(id, 1, "few");
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), Ids{11});
  scheduler.Remove(2);
  EXPECT_EQ(Admit(&scheduler), Ids{}) << "the last place is reserved for a third tenant";
  scheduler.Remove(3);
  EXPECT_EQ(Admit(&scheduler), Ids{5})
      << "both have one place, and the last admission of many is older";
  scheduler.Enqueue(13, 1, "third");
  EXPECT_EQ(Admit(&scheduler), Ids{13});
}

TEST(SchedulerTest, ForkPlacesCountForTheTenant) {
  Scheduler scheduler(9, 100);
  scheduler.Enqueue(1, 4, "wide");
  for (SequenceId id : {2, 3, 4}) scheduler.Enqueue(id, 1, "few");
  scheduler.Enqueue(5, 4, "wide");
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2, 3, 4})) << "one of the two free places stays reserved";
  scheduler.StartDecode(1);
  scheduler.Fork(1, 11);
  scheduler.Remove(1);
  scheduler.Enqueue(6, 1, "few");
  EXPECT_EQ(Admit(&scheduler), Ids{5}) << "three of its four places became free";
}

TEST(SchedulerTest, FullQueueDisplacesLargestTenant) {
  Scheduler scheduler(2, 3);
  for (SequenceId id = 1; id <= 5; ++id) EXPECT_TRUE(scheduler.Enqueue(id, 1, "many"));
  EXPECT_EQ(Admit(&scheduler), (Ids{1, 2}));
  std::optional<SequenceId> dropped;
  EXPECT_FALSE(scheduler.Enqueue(6, 1, "many", &dropped));
  EXPECT_TRUE(scheduler.Enqueue(7, 1, "few", &dropped));
  EXPECT_EQ(dropped, 5u);
  EXPECT_TRUE(scheduler.Enqueue(8, 1, "few", &dropped));
  EXPECT_EQ(dropped, 4u) << "tenant many has four places, few would have two";
  EXPECT_FALSE(scheduler.Enqueue(9, 1, "few", &dropped)) << "few would have as many places as many";
  EXPECT_FALSE(scheduler.Enqueue(9, 1, "third")) << "without `dropped`, no sequence is removed";
  scheduler.Remove(1);
  EXPECT_EQ(Admit(&scheduler), Ids{7});
}

// Random arrivals, steps and departures, as for a model that does not batch: limits hold, and each
// batch has every decoding sequence and one step of one prompt.
TEST(SchedulerTest, RandomUseKeepsInvariants) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint32_t max_running = 1 + random() % 5, max_queued = random() % 6;
    Scheduler scheduler(max_running, max_queued);
    std::map<SequenceId, int> prefill_left, decode_left;
    SequenceId next_id = 1;
    for (int i = 0; i < 1000; ++i) {
      if (random() % 4 == 0) {
        const bool room = scheduler.queued() < max_queued + max_running - scheduler.running();
        EXPECT_EQ(scheduler.Enqueue(next_id), room);
        ++next_id;
      }
      for (SequenceId id : Admit(&scheduler)) {
        prefill_left[id] = 1 + random() % 6;
        scheduler.StartPrefill(id, prefill_left[id]);
      }
      ASSERT_LE(scheduler.running(), max_running);
      const std::vector<PlannedStep> batch = scheduler.NextBatch(1, 1);
      ASSERT_EQ(batch.size(), decode_left.size() + (prefill_left.empty() ? 0 : 1));
      std::set<SequenceId> ids;
      for (const PlannedStep& step : batch) ids.insert(step.id);
      ASSERT_EQ(ids.size(), batch.size()) << "each sequence must occur once";
      for (const PlannedStep& step : batch) {
        ASSERT_EQ(step.tokens, 1u);
        if (step.kind == StepKind::kPrefill) {
          if (--prefill_left.at(step.id) > 0) continue;
          prefill_left.erase(step.id);
          decode_left[step.id] = 1 + random() % 8;
          scheduler.StartDecode(step.id);
        } else if (--decode_left.at(step.id) == 0) {
          decode_left.erase(step.id);
          scheduler.Remove(step.id);
        }
      }
    }
  }
}

// Returns a batch as text: ids of decoding sequences, then "id:tokens" for each prefilling
// sequence.
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
};

// Returns a scheduler in which ids 1 to `decoding` decode, and the sequences `prefilling` prefill.
Scheduler Batching(SequenceId decoding, const std::vector<Prefilling>& prefilling) {
  Scheduler scheduler(32, 0);
  for (SequenceId id = 1; id <= decoding; ++id) scheduler.Enqueue(id);
  for (const Prefilling& one : prefilling) scheduler.Enqueue(one.id, 1, one.tenant);
  Admit(&scheduler);
  for (SequenceId id = 1; id <= decoding; ++id) scheduler.StartDecode(id);
  for (const Prefilling& one : prefilling) scheduler.StartPrefill(one.id, one.tokens);
  return scheduler;
}

TEST(SchedulerBatchTest, PrefillGetsRowsLeftByDecoding) {
  Scheduler scheduler = Batching(3, {{9, 300, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 2 3 9:125");
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 2 3 9:125");
  scheduler.Remove(2);
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 3 9:50");
  scheduler.StartDecode(9);
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "1 3 9");
}

TEST(SchedulerBatchTest, SingleRowRotatesBetweenPrompts) {
  Scheduler scheduler = Batching(2, {{7, 3, "a"}, {8, 3, "a"}, {9, 3, "b"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(1, 1)), "1 2 7:1");
  EXPECT_EQ(BatchText(scheduler.NextBatch(1, 1)), "1 2 9:1");
  EXPECT_EQ(BatchText(scheduler.NextBatch(1, 1)), "1 2 8:1");
  scheduler.Remove(1);
  scheduler.Remove(99);  // an unknown id has no effect
  EXPECT_EQ(BatchText(scheduler.NextBatch(1, 1)), "2 9:1");
}

TEST(SchedulerBatchTest, PrefillOnlyStepIsLarger) {
  Scheduler scheduler = Batching(0, {{9, 1000, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "9:512");
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "9:488");
  scheduler.Remove(9);
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 512)), "");
}

TEST(SchedulerBatchTest, ManyDecodersDoNotStarvePrefill) {
  Scheduler scheduler = Batching(20, {{99, 100, "a"}});
  EXPECT_EQ(scheduler.NextBatch(16, 512).back().tokens, 8u);
  EXPECT_EQ(scheduler.NextBatch(1, 512).back().tokens, 1u);
}

TEST(SchedulerBatchTest, PromptsOfOneTenantShareRows) {
  Scheduler scheduler = Batching(0, {{1, 5000, "a"}, {2, 40, "a"}, {3, 5000, "a"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 300)), "1:130 2:40 3:130");
  scheduler.StartDecode(2);
  EXPECT_EQ(BatchText(scheduler.NextBatch(101, 300)), "2 1:50 3:50");
}

TEST(SchedulerBatchTest, TenantsShareRowsEqually) {
  Scheduler scheduler =
      Batching(0, {{1, 999, "a"}, {2, 999, "a"}, {3, 999, "a"}, {4, 999, "a"}, {5, 999, "b"}});
  EXPECT_EQ(BatchText(scheduler.NextBatch(128, 400)), "1:50 2:50 3:50 4:50 5:200");
}

TEST(SchedulerBatchTest, RemainderRowsRotate) {
  Scheduler scheduler = Batching(0, {{1, 99, "a"}, {2, 99, "a"}, {3, 99, "b"}, {4, 99, "c"}});
  std::map<SequenceId, uint32_t> rows;
  for (int i = 0; i < 12; ++i) {
    for (const PlannedStep& part : scheduler.NextBatch(1, 1)) rows[part.id] += part.tokens;
  }
  EXPECT_EQ(rows, (std::map<SequenceId, uint32_t>{{1, 2}, {2, 2}, {3, 4}, {4, 4}}));
}

// Random arrivals and departures: each batch satisfies the scheduler's invariants, and all
// sequences finish.
TEST(SchedulerBatchTest, RandomBatchesKeepInvariants) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint32_t rows = 1 + random() % 40, alone = rows + random() % 100;
    const uint32_t places = 1 + random() % 6;
    Scheduler scheduler(places, 4);
    size_t most = 0;  // maximum rows of a batch
    std::map<SequenceId, uint32_t> prefill_left, decode_left, passed_over;
    std::map<SequenceId, std::string> tenants;
    SequenceId next_id = 1;
    for (int i = 0; i < 1000; ++i) {
      if (random() % 4 == 0) {
        tenants[next_id] = std::string(1, 'a' + random() % 3);
        scheduler.Enqueue(next_id, 1, tenants[next_id]);
        ++next_id;
      }
      for (SequenceId id : Admit(&scheduler)) {
        prefill_left[id] = 1 + random() % 200;
        scheduler.StartPrefill(id, prefill_left[id]);
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
      for (const auto& [id, left] : prefill_left) {
        passed_over[id] = seen.count(id) == 1 ? 0 : passed_over[id] + 1;
        ASSERT_LE(passed_over[id], 2 * places) << "each prompt must get rows in turn";
      }
    }
    EXPECT_LE(most, Scheduler::MostRows(rows, alone, places));
  }
}

// A simulated worker with so few blocks that sequences must be preempted. If a sequence needs a
// block and none is free, the scheduler's victim is preempted; if there is no victim, the sequence
// itself.
class Worker {
 public:
  explicit Worker(uint64_t seed)
      : random_(seed),
        places_(1 + random_() % 6),
        budget_(6 + random_() % 12),
        scheduler_(places_, 1000) {}

  // Runs until no sequence is left, or no progress is possible. Returns whether all sequences
  // finished.
  bool Run() {
    const uint64_t count = 1 + random_() % 12;
    for (int step = 0; step < 20000; ++step) {
      if (next_id_ <= count && random_() % 3 == 0) Arrive();
      AdmitAll();
      std::vector<PlannedStep> batch = scheduler_.NextBatch(1 + random_() % 8, 1 + random_() % 16);
      std::sort(batch.begin(), batch.end(), [](auto& a, auto& b) { return a.id < b.id; });
      for (const PlannedStep& part : batch) MakeRoom(part);
      for (const PlannedStep& part : batch) {
        if (running_.count(part.id) == 1) Advance(part);
      }
      if (next_id_ > count && texts_.empty()) return true;
    }
    return false;
  }
  uint64_t preemptions() const { return preemptions_; }

 private:
  static constexpr uint64_t kChunk = 4;
  struct Text {
    uint64_t prompt, answer, generated = 0;
  };
  static uint64_t BlocksOf(uint64_t tokens) { return (tokens + kChunk - 1) / kChunk; }
  uint64_t TextOf(SequenceId id) const { return texts_.at(id).prompt + texts_.at(id).generated; }
  uint64_t Used() const {
    uint64_t blocks = 0;
    for (const auto& [id, length] : running_) blocks += BlocksOf(length);
    return blocks;
  }
  void Arrive() {
    const uint64_t prompt = 1 + random_() % (budget_ * kChunk - 1);
    const uint64_t answer = 1 + random_() % (budget_ * kChunk - prompt);
    texts_[next_id_] = {prompt, answer};
    EXPECT_TRUE(scheduler_.Enqueue(next_id_, 1, std::string(1, 'a' + random_() % 3)));
    ++next_id_;
  }
  void AdmitAll() {
    while (const std::optional<SequenceId> id = scheduler_.Candidate()) {
      const Text& text = texts_.at(*id);
      const uint64_t more = std::min(kChunk, text.answer - text.generated);
      if (Used() + BlocksOf(TextOf(*id) + more) > budget_) return;
      scheduler_.Admit(*id);
      scheduler_.StartPrefill(*id, static_cast<uint32_t>(TextOf(*id)));
      running_[*id] = 0;
    }
  }
  void MakeRoom(const PlannedStep& part) {
    while (running_.count(part.id) == 1) {
      uint64_t& length = running_.at(part.id);
      const uint64_t end = length + part.tokens;
      if (Used() - BlocksOf(length) + BlocksOf(end) <= budget_) {
        length = end;  // allocates the blocks up to `end`
        return;
      }
      const std::optional<SequenceId> victim = scheduler_.Victim(part.id, [&](SequenceId id) {
        return BlocksOf(running_.count(id) == 1 ? running_.at(id) : 0);
      });
      EXPECT_GT(victim.value_or(part.id + 1), part.id);
      const SequenceId preempted = victim.value_or(part.id);
      EXPECT_GT(preempted, running_.begin()->first)
          << "the oldest sequence must never be preempted";
      scheduler_.Requeue(preempted, 1);
      running_.erase(preempted);
      ++preemptions_;
    }
  }
  void Advance(const PlannedStep& part) {
    Text& text = texts_.at(part.id);
    if (running_.at(part.id) < TextOf(part.id)) return;  // the sequence is still prefilling
    if (part.kind == StepKind::kPrefill) scheduler_.StartDecode(part.id);
    if (++text.generated < text.answer) return;
    scheduler_.Remove(part.id);
    running_.erase(part.id);
    texts_.erase(part.id);
  }

  std::mt19937_64 random_;
  const uint32_t places_;
  const uint64_t budget_;  // number of blocks
  Scheduler scheduler_;
  SequenceId next_id_ = 1;
  std::map<SequenceId, Text> texts_;
  std::map<SequenceId, uint64_t> running_;  // tokens whose blocks are allocated, by sequence id
  uint64_t preemptions_ = 0;
};

TEST(SchedulerPreemptionTest, RandomSchedulesAlwaysFinish) {
  uint64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 10000; ++seed) {
    Worker worker(seed);
    ASSERT_TRUE(worker.Run()) << seed;
    preemptions += worker.preemptions();
  }
  EXPECT_GT(preemptions, 10000u);
}

}  // namespace
}  // namespace hearth
