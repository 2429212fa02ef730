// The scheduler computes beside a prompt what the estimate says.

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/engine/scheduler.h"
#include "worker/prefix/load_trial.h"

namespace hearth {
namespace {

constexpr uint32_t kRows = 128;

struct Beside {
  uint32_t tokens;
  std::string tenant;
  bool promised = false;
};

// How many tokens pass until a prompt of tenant "a" that comes last has its own: what is foreseen,
// and what the scheduler does.
void ExpectForeseen(const std::vector<Beside>& others, uint32_t own) {
  Scheduler scheduler(32, 0);
  SequenceId id = 0;
  std::map<SequenceId, uint32_t> others_left;
  for (const Beside& other : others) {
    ASSERT_TRUE(scheduler.Enqueue(++id));
    scheduler.Admit(id);
    others_left[id] = other.tokens;
    scheduler.StartPrefill(id, other.tokens, other.tenant, other.promised);
  }
  const PrefillsBeside beside = scheduler.Beside("a");
  LoadTrial::Work work;
  work.oldest = beside.oldest;
  work.promised = beside.promised;
  work.by_length = beside.by_length;
  work.tenants = beside.tenants;
  const double foreseen = work.TokensUntil(own);
  ASSERT_TRUE(scheduler.Enqueue(++id));
  scheduler.Admit(id);
  scheduler.StartPrefill(id, own, "a");
  double passed = 0;
  for (uint32_t left = own; left > 0;) {
    const std::vector<PlannedStep> batch = scheduler.NextBatch(kRows, kRows);
    ASSERT_FALSE(batch.empty());
    for (const PlannedStep& part : batch) {
      passed += part.tokens;
      if (part.id == id) left -= part.tokens;
      if (part.id != id && (others_left[part.id] -= part.tokens) == 0) scheduler.Remove(part.id);
    }
  }
  EXPECT_NEAR(foreseen, passed, kRows);
}

TEST(PrefillsBesideTest, LongerOnesButForTheOldestAreNotWaitedFor) {
  ExpectForeseen({}, 512);
  ExpectForeseen({{8192, "a"}}, 512);
  ExpectForeseen(std::vector<Beside>(8, {8192, "a"}), 512);
}

TEST(PrefillsBesideTest, ShorterOnesAre) {
  ExpectForeseen(std::vector<Beside>(8, {256, "a"}), 2048);
  ExpectForeseen(std::vector<Beside>(8, {512, "a"}), 512);
  ExpectForeseen({{8192, "a"}, {256, "a"}, {256, "a"}, {4096, "a"}}, 512);
}

TEST(PrefillsBesideTest, AnotherTenantHasAsManyRowsHoweverManyPromptsItHas) {
  ExpectForeseen(std::vector<Beside>(8, {8192, "b"}), 512);
  ExpectForeseen({{8192, "b"}, {8192, "b"}, {8192, "a"}, {8192, "a"}}, 512);
  ExpectForeseen({{100, "b"}, {100, "b"}, {8192, "a"}, {256, "a"}}, 1024);
}

TEST(PrefillsBesideTest, ThoseThatArePromisedShareTheFirstHalf) {
  ExpectForeseen({{8192, "a"}, {8192, "a", true}, {8192, "a", true}}, 512);
  ExpectForeseen({{8192, "a"}, {256, "a", true}, {512, "a"}}, 1024);
  ExpectForeseen({{100, "a"}, {8192, "a", true}, {512, "a"}}, 1024);
}

}  // namespace
}  // namespace hearth
