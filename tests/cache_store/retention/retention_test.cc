// Tests of both eviction policies, and of what the default policy learns.
#include "cache_store/retention/retention.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace hearth {
namespace {

using Key = Retention::Key;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

std::vector<Key> Offered(Retention* retention) {
  std::vector<Key> keys;
  retention->Visit([&](Key key) {
    keys.push_back(key);
    return Retention::Answer::kNext;
  });
  return keys;
}

Retention::Facts PointOf(uint32_t tokens) {
  Retention::Facts facts;
  facts.tokens = facts.gain_tokens = tokens;
  facts.tail_bytes = 1000;
  facts.bytes = 1000 + tokens;
  return facts;
}

// Fixture of tests of all policies: which units they offer, whatever the order.
class RetentionContractTest : public ::testing::TestWithParam<RetentionPolicy> {
 protected:
  std::unique_ptr<Retention> Make(Retention::Depend depend = Retention::Depend::kNothing) {
    return MakeRetention(GetParam(), depend);
  }
};

TEST_P(RetentionContractTest, LongestUnitIsOfferedFirst) {
  const auto retention = Make();
  retention->Insert(1, PointOf(512), {1, 2048, At(0)});
  retention->Insert(2, PointOf(1024), {2, 2048, At(0)});
  retention->Insert(3, PointOf(2048), {3, 2048, At(0)});
  retention->Renew({1, 2, 3}, At(1));
  const std::vector<Key> offered = Offered(retention.get());
  ASSERT_EQ(offered.size(), 3u);
  EXPECT_EQ(GetParam() == RetentionPolicy::kLru ? offered : std::vector<Key>({3, 2, 1}),
            std::vector<Key>({3, 2, 1}));
}

TEST_P(RetentionContractTest, UnevictableUnitIsNotOffered) {
  const auto retention = Make();
  retention->Insert(1, PointOf(512), {1, 512, At(0)});
  retention->Insert(2, PointOf(512), {2, 512, At(1)});
  EXPECT_EQ(Offered(retention.get()).size(), 2u);
  retention->SetEvictable(2, false);
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({1}));
  retention->SetEvictable(2, true);
  EXPECT_EQ(Offered(retention.get()).size(), 2u);
  retention->Erase(2, true);
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({1}));
  EXPECT_FALSE(retention->Contains(2));
  EXPECT_EQ(retention->held(), 1u);
}

// Weights change which units owner 1 loses, but not the number of units that it loses.
TEST_P(RetentionContractTest, WeightReordersUnitsOfOneOwner) {
  const auto retention = Make();
  for (int i = 1; i <= 4; ++i) {
    Retention::Facts facts = PointOf(512);
    facts.owner = i <= 2 ? 1 : 2;
    retention->Insert(i, facts, {static_cast<uint64_t>(i), 512, At(0)});
  }
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({1, 2, 3, 4}));
  retention->SetWeight(1, Retention::kMaxWeight);
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({2, 1, 3, 4}));
  retention->SetWeight(3, Retention::kDoubleWorth);
  retention->SetWeight(1, 0);
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({1, 2, 4, 3}));
  retention->SetWeight(2, -Retention::kDoubleWorth);
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({2, 1, 4, 3}));
  retention->Erase(2, true);
  Retention::Facts again = PointOf(512);
  again.owner = 1;
  retention->Insert(2, again, {5, 512, At(0)});
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({1, 2, 4, 3})) << "no weight is remembered";
}

TEST_P(RetentionContractTest, AdoptedUnitsAreOfferedOldestFirst) {
  const auto retention = Make();
  retention->Insert(9, PointOf(512), {1, 512, At(1000)});
  for (int i = 0; i < 4; ++i) {
    retention->Adopt(i, PointOf(512), false, At(900 - i), At(1000));
  }
  const std::vector<Key> offered = Offered(retention.get());
  ASSERT_EQ(offered.size(), 5u);
  std::vector<Key> adopted;
  for (const Key key : offered) {
    if (key != 9) adopted.push_back(key);
  }
  EXPECT_EQ(adopted, std::vector<Key>({3, 2, 1, 0}));
}

TEST_P(RetentionContractTest, BackwardTimeIsIgnored) {
  const auto retention = Make();
  retention->Insert(1, PointOf(512), {1, 512, At(100)});
  retention->Touch({1}, 512, At(50));
  retention->Insert(2, PointOf(512), {2, 512, At(10)});
  retention->Renew({1}, At(0));
  retention->Touch({1, 2}, 512, At(101));
  EXPECT_EQ(Offered(retention.get()).size(), 2u);
}

// After a random sequence of calls, each held unit that may be evicted is offered exactly once, and
// the same sequence gives the same order.
TEST_P(RetentionContractTest, EveryEvictableUnitIsOfferedOnce) {
  for (const auto depend : {Retention::Depend::kNothing, Retention::Depend::kOnParent}) {
    const auto retention = Make(depend), twin = Make(depend);
    std::mt19937 random(7);
    std::map<int, bool> held;  // held keys, and whether they may be evicted
    double now = 0;
    for (int step = 0; step < 20'000; ++step) {
      now += random() % 100 / 10.0;
      const int chain = static_cast<int>(random() % 40), depth = 1 + static_cast<int>(random() % 6);
      const int key = chain * 10 + depth;
      for (Retention* each : {retention.get(), twin.get()}) {
        Retention::Facts facts = PointOf(depth * 512);
        if (depth > 1) facts.parent = key - 1;
        if (depth > 2 && chain % 3 == 0 && held.count(key - 1) > 0) facts.with = key - 1;
        if (held.count(key) == 0) {
          each->Insert(key, facts, {static_cast<uint64_t>(step) + 1, 4096, At(now)});
        } else if (chain % 4 == 0) {
          each->SetEvictable(key, !held[key]);
        } else if (chain % 4 == 1) {
          each->Erase(key, depth % 2 == 0);
        } else {
          std::vector<Key> path;
          for (int i = 1; i <= depth; ++i) path.push_back(chain * 10 + i);
          each->Touch(path, 4096, At(now));
        }
      }
      if (held.count(key) == 0) {
        held[key] = true;  // the new unit may be evicted
      } else if (chain % 4 == 0) {
        held[key] = !held[key];
      } else if (chain % 4 == 1) {
        held.erase(key);
      }
      if (step % 500 != 0) continue;
      const std::vector<Key> offered = Offered(retention.get());
      EXPECT_EQ(offered, Offered(twin.get()));
      EXPECT_EQ(retention->held(), held.size());
      const std::set<Key> distinct(offered.begin(), offered.end());
      EXPECT_EQ(distinct.size(), offered.size());
      for (const Key key_offered : offered) EXPECT_TRUE(retention->Contains(key_offered));
      if (depend == Retention::Depend::kNothing) {
        size_t evictable = 0;
        for (const auto& [one, is_evictable] : held) evictable += is_evictable ? 1 : 0;
        EXPECT_EQ(offered.size(), evictable);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RetentionContractTest,
                         ::testing::Values(RetentionPolicy::kDefault, RetentionPolicy::kLru),
                         [](const auto& info) {
                           return info.param == RetentionPolicy::kLru ? "lru" : "default";
                         });

TEST(LruRetentionTest, LeastRecentUnitIsFirst) {
  const auto retention = MakeRetention(RetentionPolicy::kLru, Retention::Depend::kNothing);
  for (int i = 1; i <= 3; ++i) retention->Insert(i, PointOf(512), {1, 512, At(i)});
  retention->Touch({1}, 512, At(4));
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({2, 3, 1}));
  EXPECT_EQ(retention->remembered(), 0u);
}

TEST(LearningRetentionTest, ParentIsOfferedAfterItsChild) {
  const auto retention = MakeRetention(RetentionPolicy::kDefault, Retention::Depend::kOnParent);
  Retention::Facts facts = PointOf(512);
  retention->Insert(1, facts, {1, 1024, At(0)});
  facts.tokens = 1024;
  facts.parent = 1;
  retention->Insert(2, facts, {1, 1024, At(0)});
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({2}));
  retention->Erase(2, true);
  EXPECT_EQ(Offered(retention.get()), std::vector<Key>({1}));
}

TEST(LearningRetentionTest, JoinedUnitsAreOfferedTogether) {
  const auto retention = MakeRetention(RetentionPolicy::kDefault, Retention::Depend::kNothing);
  for (int i = 0; i < 3; ++i) {
    retention->Insert(10 * i, PointOf(1024), {1u + i, 1536, At(i)});
    Retention::Facts end = PointOf(1536);
    end.parent = end.with = 10 * i;
    retention->Insert(10 * i + 1, end, {1u + i, 1536, At(i)});
  }
  // Use key 0 only. The use counts for keys 0 and 1, because `with` joined them into one unit.
  retention->Touch({0}, 2048, At(5));
  const std::vector<Key> offered = Offered(retention.get());
  ASSERT_EQ(offered.size(), 6u);
  for (size_t i = 0; i < 6; i += 2) {
    EXPECT_EQ(offered[i], offered[i + 1] + 1) << "of a unit, the longer prefix first";
  }
  retention->Erase(11, true);
  EXPECT_TRUE(retention->Contains(10));
  EXPECT_EQ(retention->remembered(), 0u) << "key 10 of the unit is held";
  retention->Erase(10, true);
  EXPECT_EQ(retention->remembered(), 1u);
}

// While a longer restore point is held, evicting a shorter one frees only its local tail. So its
// worth is computed with the bytes of the tail, not of all its objects.
TEST(LearningRetentionTest, UnitWithChildWeighsTailBytes) {
  const auto order = [](bool continued) {
    const auto retention = MakeRetention(RetentionPolicy::kDefault, Retention::Depend::kNothing);
    Retention::Facts small = PointOf(1024), large = PointOf(1024);
    small.bytes = large.bytes = 100'000;
    small.tail_bytes = 1'000;
    large.tail_bytes = 50'000;
    retention->Insert(1, small, {1, 2048, At(0)});
    retention->Insert(2, large, {2, 2048, At(1)});
    if (continued) {
      for (const Key parent : {1, 2}) {
        Retention::Facts longer = PointOf(2048);
        longer.parent = parent;
        retention->Insert(parent + 10, longer, {static_cast<uint64_t>(parent), 2048, At(2)});
      }
    }
    std::vector<Key> both;
    for (const Key key : Offered(retention.get())) {
      if (key < 10) both.push_back(key);
    }
    return both;
  };
  EXPECT_EQ(order(false), std::vector<Key>({1, 2})) << "equal but for their last use";
  EXPECT_EQ(order(true), std::vector<Key>({2, 1}));
}

TEST(LearningRetentionTest, NumberOfRememberedUnitsIsLimited) {
  const auto retention = MakeRetention(RetentionPolicy::kDefault, Retention::Depend::kNothing);
  for (uint64_t i = 0; i < Retention::kRememberedMax + 1000; ++i) {
    retention->Insert(i, PointOf(512), {i + 1, 512, At(i)});
    retention->Erase(i, true);
  }
  EXPECT_EQ(retention->held(), 0u);
  EXPECT_EQ(retention->remembered(), Retention::kRememberedMax);
  // A unit that was dropped, not evicted, is not remembered.
  retention->Insert(1, PointOf(512), {1, 512, At(1e6)});
  retention->Erase(1, false);
  EXPECT_EQ(retention->remembered(), Retention::kRememberedMax);
}

// Only long prompts return. Otherwise long and short prompts are used equally, so LRU could not
// distinguish them.
TEST(LearningRetentionTest, ReturningPromptsAreEvictedLast) {
  const auto retention = MakeRetention(RetentionPolicy::kDefault, Retention::Depend::kNothing);
  for (uint64_t i = 0; i < 2000; ++i) {
    const bool is_long = i % 2 == 0;
    const uint32_t tokens = is_long ? 16'384 : 1024;
    if (is_long && i >= 40) retention->Touch({i - 40}, tokens, At(i));
    Retention::Facts facts = PointOf(tokens);
    facts.bytes = tokens;  // equal bytes per token, so that the size does not distinguish them
    retention->Insert(i, facts, {i + 1, tokens, At(i)});
  }
  std::vector<Key> offered = Offered(retention.get());
  ASSERT_EQ(offered.size(), 2000u);
  // Look at the last 40 prompts, the only prompts that can still return: the short ones must be
  // offered first.
  std::vector<bool> last_are_long;
  for (const Key key : offered) {
    if (key >= 1960) last_are_long.push_back(key % 2 == 0);
  }
  for (size_t i = 0; i < last_are_long.size(); ++i) EXPECT_EQ(last_are_long[i], i >= 20) << i;
}

}  // namespace
}  // namespace hearth
