// ObjectMap computes the boundaries that a prompt's objects can restore; they follow the restore
// rule, whichever objects are missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cache_store/shared/tier/shared_lookup.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

class ObjectMapTest : public ::testing::Test {
 protected:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  KvLayout DrawLayout() {
    KvLayout layout;
    layout.chunk_tokens = 16;
    layout.window = 1 + Draw(60);
    layout.kv_heads = 1;
    layout.head_dim = 4;
    const LayerGroup kinds[] = {LayerGroup::kLocal, LayerGroup::kGlobal};
    const uint32_t kind = Draw(4);  // layers of one group only, or of both groups
    for (uint32_t i = 0; i < 3; ++i) {
      layout.layers.push_back(kind < 2 ? kinds[kind] : kinds[i % 2]);
    }
    return layout;
  }

  std::mt19937_64 random_{20261123};
};

TEST_F(ObjectMapTest, BoundariesFollowRestoreRule) {
  using Place = ObjectMap::Place;
  int restorable = 0, gaps = 0;
  for (int round = 0; round < 400; ++round) {
    const KvLayout layout = DrawLayout();
    const uint32_t tokens = 20 + Draw(200);
    const std::vector<uint32_t> token_ids(tokens, 7), cuts = {5 + Draw(10), 16 + Draw(tokens - 16)};
    const std::vector<uint32_t> candidates = RestoreCandidates(tokens, cuts, 16);
    const PromptChain chain = MakeChain(layout, Digest{}, token_ids, cuts, candidates.back(), cuts);
    const uint32_t here = Draw(3) > 0 ? 0 : candidates[Draw(uint32_t(candidates.size()))];
    const uint32_t above = Draw(2) > 0 ? here : Draw(tokens);
    ObjectMap map(layout, chain, here);
    const uint32_t rarity = 1 + Draw(40);
    for (const ObjectId& id : map.ToProbe()) {
      if (Draw(rarity) > 0 || rarity == 40) map.Set(id, Place::kEngine);
    }
    std::vector<uint32_t> expected;
    for (const uint32_t boundary : candidates) {
      const std::vector<ObjectId> needed = NeededObjects(layout, boundary);
      const bool has_all = std::all_of(needed.begin(), needed.end(), [&](const ObjectId& id) {
        return map.Of(id) != Place::kNowhere;
      });
      if (has_all && boundary > above) expected.push_back(boundary);
      gaps += !has_all;
    }
    ASSERT_EQ(map.Restorable(candidates, above), expected) << round;
    restorable += static_cast<int>(expected.size());
  }
  EXPECT_GT(restorable, 500);
  EXPECT_GT(gaps, 500);
}

TEST_F(ObjectMapTest, NeededBytesEqualSumOfObjects) {
  for (int round = 0; round < 200; ++round) {
    const KvLayout layout = DrawLayout();
    const uint32_t boundary = 1 + Draw(300);
    uint64_t bytes = 0;
    for (const ObjectId& id : NeededObjects(layout, boundary)) {
      bytes += layout.ObjectBytes(id.tokens, id.group);
    }
    EXPECT_EQ(NeededBytes(layout, boundary), bytes) << boundary;
  }
}

}  // namespace
}  // namespace hearth
