#include "proto/restore_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Positions = std::vector<uint32_t>;

KvLayout LayoutOf(uint32_t chunk_tokens, uint32_t window) {
  KvLayout layout;
  layout.chunk_tokens = chunk_tokens;
  layout.window = window;
  layout.kv_heads = 1;
  layout.head_dim = 1;
  layout.layers = {LayerGroup::kLocal, LayerGroup::kGlobal};
  return layout;
}

// Returns, for each token of [0, boundary), how many objects of the group contain it.
std::vector<int> Coverage(const std::vector<ObjectId>& objects, LayerGroup group,
                          uint32_t boundary) {
  std::vector<int> covered(boundary, 0);
  for (const ObjectId& id : objects) {
    if (id.group != group) continue;
    EXPECT_LE(id.begin + id.tokens, boundary) << "an object reaches past its boundary";
    for (uint32_t t = id.begin; t < id.begin + id.tokens; ++t) covered[t]++;
  }
  return covered;
}

TEST(NeededObjectsTest, CoversGlobalPrefixAndLocalWindow) {
  for (uint32_t chunk : {16u, 32u, 128u}) {
    for (uint32_t window : {1u, 2u, 8u, 15u, 16u, 17u, 18u, 33u, 100u, 129u, 512u, 600u}) {
      const KvLayout layout = LayoutOf(chunk, window);
      for (uint32_t boundary = 1; boundary <= 5 * chunk + 3; ++boundary) {
        const std::vector<ObjectId> needed = NeededObjects(layout, boundary);
        const uint32_t tail = LocalTailBegin(layout, boundary);
        EXPECT_EQ(tail, boundary - std::min(boundary, window - 1));
        const std::vector<int> global = Coverage(needed, LayerGroup::kGlobal, boundary);
        const std::vector<int> local = Coverage(needed, LayerGroup::kLocal, boundary);
        ASSERT_EQ(std::count(global.begin(), global.end(), 1), boundary);
        for (uint32_t t = tail; t < boundary; ++t) {
          ASSERT_EQ(local[t], 1) << "C " << chunk << " W " << window << " B " << boundary;
        }
        // There are no unneeded objects: every local object overlaps the last window of tokens.
        for (const ObjectId& id : needed) {
          if (id.group == LayerGroup::kLocal) {
            ASSERT_GT(id.begin + id.tokens, tail);
          }
        }
      }
    }
  }
}

TEST(NeededObjectsTest, KeptBoundaryHasAllNeededObjects) {
  for (uint32_t chunk : {16u, 32u}) {
    for (uint32_t window : {1u, 7u, 16u, 17u, 40u, 200u}) {
      const KvLayout layout = LayoutOf(chunk, window);
      for (uint32_t tokens = 1; tokens <= 4 * chunk + 2; ++tokens) {
        const Positions cuts = {std::max(1u, tokens / 3), std::max(2u, tokens / 3 + 1)};
        const Positions sent = tokens < 2 ? Positions{} : cuts;
        // Store the objects of all boundaries that are worth keeping.
        std::set<ObjectId> stored;
        const Positions kept = KeptBoundaries(tokens, sent, 0, 0, chunk);
        for (uint32_t boundary : kept) {
          for (const ObjectId& id : NeededObjects(layout, boundary)) stored.insert(id);
        }
        // Look up a later, longer prompt that has the same cuts.
        const Positions candidates = RestoreCandidates(tokens + 50, sent, chunk);
        for (uint32_t boundary : kept) {
          ASSERT_TRUE(std::binary_search(candidates.begin(), candidates.end(), boundary));
        }
        // A candidate can be restored if all objects that it needs are stored. Kept boundaries must
        // be restorable; boundaries after the prompt's end must not be.
        for (uint32_t boundary : candidates) {
          const std::vector<ObjectId> needed = NeededObjects(layout, boundary);
          const bool complete = std::all_of(needed.begin(), needed.end(), [&](const ObjectId& id) {
            return stored.count(id) > 0;
          });
          const bool is_kept = std::binary_search(kept.begin(), kept.end(), boundary);
          ASSERT_TRUE(complete || !is_kept) << boundary << " of " << tokens;
          ASSERT_TRUE(boundary <= tokens || !complete) << boundary << " of " << tokens;
        }
      }
    }
  }
}

TEST(NeededObjectsTest, EmptyGroupNeedsNoObjects) {
  KvLayout layout = LayoutOf(16, 8);
  layout.layers = {LayerGroup::kGlobal};
  for (const ObjectId& id : NeededObjects(layout, 40)) EXPECT_EQ(id.group, LayerGroup::kGlobal);
  layout.layers = {LayerGroup::kLocal};
  EXPECT_THAT(NeededObjects(layout, 40), ElementsAre(ObjectId{32, 8, LayerGroup::kLocal}));
}

TEST(NeededObjectsTest, LongerWindowNeedsOneMoreObject) {
  // With a window of 17, the local objects for boundary 32 begin at token 16; with a window of 18,
  // at token 15.
  const std::vector<ObjectId> short_tail = NeededObjects(LayoutOf(16, 17), 32);
  const std::vector<ObjectId> long_tail = NeededObjects(LayoutOf(16, 18), 32);
  EXPECT_THAT(short_tail, ElementsAre(ObjectId{0, 16, LayerGroup::kGlobal},
                                      ObjectId{16, 16, LayerGroup::kGlobal},
                                      ObjectId{16, 16, LayerGroup::kLocal}));
  EXPECT_EQ(long_tail.size(), 4u);
}

TEST(StepEndsTest, StepsEndAtChunksAndBreakpoints) {
  EXPECT_THAT(StepEnds(300, Positions{100, 256, 260}, 128), ElementsAre(100, 128, 256, 260, 300));
  EXPECT_THAT(StepEnds(128, Positions{}, 128), ElementsAre(128));
  EXPECT_THAT(StepEnds(1, Positions{}, 128), ElementsAre(1));
  EXPECT_THAT(StepEnds(0, Positions{}, 128), IsEmpty());
}

TEST(StepEndsTest, WarmRunUsesStepsOfColdRun) {
  // A request that restores a prefix computes only the tokens after it, in the same steps as a cold
  // run.
  for (uint32_t boundary : {100u, 128u, 256u}) {
    Positions cold = StepEnds(500, Positions{100, 256}, 128);
    Positions longer = StepEnds(900, Positions{100, 256, 700}, 128);
    cold.erase(std::upper_bound(cold.begin(), cold.end(), boundary), cold.end());
    longer.erase(std::upper_bound(longer.begin(), longer.end(), boundary), longer.end());
    EXPECT_EQ(cold, longer);
    EXPECT_EQ(cold.back(), boundary);
  }
}

TEST(RestoreCandidatesTest, BoundariesAboveMaximumAreOmitted) {
  EXPECT_THAT(RestoreCandidates(255, Positions{100, 256}, 128), ElementsAre(100, 128));
  EXPECT_THAT(RestoreCandidates(99, Positions{100}, 128), IsEmpty());
}

TEST(CutsInsideTest, CutsBecomeOffsetsInChunk) {
  const Positions cuts = {100, 128, 130, 200, 256};
  EXPECT_THAT(CutsInside({0, 128}, cuts, Exactness::kExact), ElementsAre(100));
  EXPECT_THAT(CutsInside({128, 128}, cuts, Exactness::kExact), ElementsAre(2, 72));
  EXPECT_THAT(CutsInside({128, 72}, cuts, Exactness::kExact), ElementsAre(2));
  EXPECT_THAT(CutsInside({128, 128}, cuts, Exactness::kPortable), IsEmpty());
}

TEST(KeptBoundariesTest, PromptOfWholeChunksKeepsLastTwo) {
  EXPECT_THAT(KeptBoundaries(2048, Positions{}, 0, 0, 128), ElementsAre(1920, 2048));
}

TEST(KeptBoundariesTest, PartialChunkKeepsPreviousChunkEnd) {
  EXPECT_THAT(KeptBoundaries(2112, Positions{}, 0, 0, 128), ElementsAre(2048));
}

TEST(KeptBoundariesTest, BreakpointAndLastChunkKept) {
  EXPECT_THAT(KeptBoundaries(300, Positions{100}, 0, 0, 128), ElementsAre(100, 256));
  EXPECT_THAT(KeptBoundaries(300, Positions{100, 300}, 0, 0, 128), ElementsAre(100, 256, 300));
}

TEST(KeptBoundariesTest, DivergencePointIsKept) {
  EXPECT_THAT(KeptBoundaries(3000, Positions{}, 1000, 0, 128), ElementsAre(896, 2944));
  EXPECT_THAT(KeptBoundaries(3000, Positions{}, 1000, 896, 128), ElementsAre(2944));
  // The store may have matched more tokens than this prompt has.
  EXPECT_THAT(KeptBoundaries(256, Positions{}, 4096, 128, 128), ElementsAre(256));
}

TEST(KeptBoundariesTest, RestoredBoundariesAreSkipped) {
  EXPECT_THAT(KeptBoundaries(2112, Positions{100, 2048}, 2112, 2048, 128), IsEmpty());
  EXPECT_THAT(KeptBoundaries(100, Positions{}, 0, 0, 128), IsEmpty());
  EXPECT_THAT(KeptBoundaries(0, Positions{}, 0, 0, 128), IsEmpty());
}

TEST(KeptBoundariesTest, KeptBoundariesAreStepEnds) {
  for (uint32_t tokens = 1; tokens < 200; ++tokens) {
    for (uint32_t matched : {0u, 15u, 16u, 40u, tokens}) {
      const Positions cuts = {(tokens + 1) / 2};
      const Positions steps = StepEnds(tokens, cuts, 16);
      for (uint32_t boundary : KeptBoundaries(tokens, cuts, matched, 0, 16)) {
        ASSERT_TRUE(std::binary_search(steps.begin(), steps.end(), boundary));
      }
    }
  }
}

TEST(ValidateCutsTest, TooManyCutsErrorNamesLimit) {
  Positions cuts(kMaxCuts);
  std::iota(cuts.begin(), cuts.end(), 1);
  EXPECT_TRUE(ValidateCuts(cuts, kMaxPromptTokens).ok());
  cuts.push_back(cuts.back() + 1);
  EXPECT_THAT(ValidateCuts(cuts, kMaxPromptTokens).message(),
              HasSubstr("at most 65536 positions; got 65537"));
}

TEST(ValidateCutsTest, ErrorNamesBadCut) {
  EXPECT_TRUE(ValidateCuts(Positions{1, 5, 10}, 10).ok());
  EXPECT_TRUE(ValidateCuts(Positions{}, 0).ok());
  EXPECT_THAT(ValidateCuts(Positions{0}, 10).message(), HasSubstr("cuts[0] is 0"));
  EXPECT_THAT(ValidateCuts(Positions{5, 5}, 10).message(), HasSubstr("cuts[1] is 5"));
  EXPECT_THAT(ValidateCuts(Positions{5, 11}, 10).message(),
              HasSubstr("past the end of the prompt, 10"));
}

}  // namespace
}  // namespace hearth
