#include "services/events/block_ledger.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace hearth {
namespace {

constexpr uint32_t kBlockTokens = 2;

// A prompt is a text; each letter is a block, whose number says what came before it.
PointBlocks PointOf(const std::string& text) {
  PointBlocks point{text, kBlockTokens, {}, {}};
  uint64_t id = 1;
  for (const char letter : text) {
    id = id * 31 + static_cast<uint64_t>(letter);
    point.ids.push_back(id);
    for (uint32_t i = 0; i < kBlockTokens; ++i) {
      point.token_ids.push_back(static_cast<uint32_t>(letter));
    }
  }
  return point;
}

// What a router knows that applies all events: it matches blocks from the root on.
class Router {
 public:
  void Apply(const std::vector<KvEvent>& events) {
    for (const KvEvent& event : events) {
      if (const auto* stored = std::get_if<BlocksStored>(&event)) {
        uint64_t parent = stored->parent_id;
        EXPECT_TRUE(parent == 0 || blocks_.count(parent) == 1) << "a parent comes first";
        for (size_t i = 0; i < stored->ids.size(); ++i) {
          const auto begin = stored->token_ids.begin() + i * stored->block_tokens;
          const std::vector<uint32_t> tokens(begin, begin + stored->block_tokens);
          EXPECT_TRUE(blocks_.emplace(stored->ids[i], std::make_pair(parent, tokens)).second);
          parent = stored->ids[i];
        }
      } else if (const auto* removed = std::get_if<BlocksRemoved>(&event)) {
        for (const uint64_t id : removed->ids) {
          EXPECT_EQ(blocks_.erase(id), 1u);
          for (const auto& [other, block] : blocks_) EXPECT_NE(block.first, id) << other;
        }
      } else {
        blocks_.clear();
      }
    }
  }
  const std::map<uint64_t, std::pair<uint64_t, std::vector<uint32_t>>>& blocks() const {
    return blocks_;
  }

 private:
  std::map<uint64_t, std::pair<uint64_t, std::vector<uint32_t>>> blocks_;
};

class BlockLedgerTest : public ::testing::Test {
 protected:
  std::vector<KvEvent> Add(const std::string& text) {
    std::vector<KvEvent> events;
    EXPECT_TRUE(ledger_.Add(PointOf(text), &events));
    return events;
  }
  std::vector<KvEvent> Remove(const std::string& text) {
    std::vector<KvEvent> events;
    ledger_.Remove(text, &events);
    return events;
  }

  BlockLedger ledger_{8};
};

TEST_F(BlockLedgerTest, OnlyWhatIsNewIsTold) {
  ASSERT_EQ(Add("ab").size(), 1u);
  const std::vector<KvEvent> events = Add("abcd");
  ASSERT_EQ(events.size(), 1u);
  const auto& stored = std::get<BlocksStored>(events[0]);
  const PointBlocks whole = PointOf("abcd");
  EXPECT_EQ(stored.ids, std::vector<uint64_t>(whole.ids.begin() + 2, whole.ids.end()));
  EXPECT_EQ(stored.parent_id, whole.ids[1]);
  EXPECT_EQ(stored.token_ids, (std::vector<uint32_t>{'c', 'c', 'd', 'd'}));
  EXPECT_TRUE(Add("abc").empty()) << "others go through it already";
  EXPECT_TRUE(Add("abc").empty()) << "known";
  EXPECT_EQ(ledger_.points(), 3u);
}

TEST_F(BlockLedgerTest, ABlockStaysAsLongAsAPointEndsInItOrGoesThrough) {
  Add("ab");
  Add("abcd");
  Add("abx");
  EXPECT_TRUE(Remove("ab").empty()) << "others go through it";
  const PointBlocks whole = PointOf("abcd");
  std::vector<KvEvent> events = Remove("abcd");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<BlocksRemoved>(events[0]).ids,
            (std::vector<uint64_t>{whole.ids[3], whole.ids[2]}))
      << "the last first";
  events = Remove("abx");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<BlocksRemoved>(events[0]).ids.size(), 3u);
  EXPECT_EQ(ledger_.blocks(), 0u);
  EXPECT_TRUE(Remove("abx").empty());
}

TEST_F(BlockLedgerTest, WithoutRoomNothingChanges) {
  Add("abcdef");
  std::vector<KvEvent> events;
  EXPECT_FALSE(ledger_.Add(PointOf("xyz"), &events));
  EXPECT_FALSE(ledger_.Add(PointOf("abcdefghi"), &events));
  EXPECT_TRUE(events.empty());
  EXPECT_FALSE(ledger_.Has("xyz"));
  EXPECT_EQ(ledger_.blocks(), 6u);
  Add("xy");
  Remove("abcdef");
  Add("xyz");
  EXPECT_EQ(ledger_.blocks(), 3u);
}

TEST_F(BlockLedgerTest, BlocksThatContradictOthersAreNotTold) {
  Add("ab");
  std::vector<KvEvent> events;
  PointBlocks other = PointOf("xy");
  other.ids[1] = PointOf("ab").ids[1];  // after another parent
  EXPECT_FALSE(ledger_.Add(other, &events));
  other.ids = {77, 77};
  EXPECT_FALSE(ledger_.Add(other, &events));
  other.ids = {77, 0};
  EXPECT_FALSE(ledger_.Add(other, &events));
  EXPECT_TRUE(events.empty());
  EXPECT_EQ(ledger_.blocks(), 2u);
}

TEST_F(BlockLedgerTest, WhateverComesAndGoesARouterKnowsTheBlocksOfThePointsThatAreThere) {
  constexpr uint64_t kSeed = 20261123;
  std::mt19937_64 random(kSeed);
  BlockLedger ledger(1000);
  Router router;
  std::set<std::string> there;
  for (int step = 0; step < 3000; ++step) {
    std::string text(1 + random() % 6, 'a');
    for (char& letter : text) letter = static_cast<char>('a' + random() % 3);
    std::vector<KvEvent> events;
    const int choice = static_cast<int>(random() % 20);
    if (choice == 0) {
      absl::flat_hash_set<std::string> kept;
      for (const std::string& point : there) {
        if (random() % 2 == 0) kept.insert(point);
      }
      ledger.Keep(kept, &events);
      there = {kept.begin(), kept.end()};
    } else if (choice < 11) {
      ASSERT_TRUE(ledger.Add(PointOf(text), &events));
      there.insert(text);
    } else {
      ledger.Remove(text, &events);
      there.erase(text);
    }
    router.Apply(events);
    std::set<uint64_t> expected;
    for (const std::string& point : there) {
      const PointBlocks blocks = PointOf(point);
      expected.insert(blocks.ids.begin(), blocks.ids.end());
    }
    std::set<uint64_t> known;
    for (const auto& [id, block] : router.blocks()) known.insert(id);
    ASSERT_EQ(known, expected) << "step " << step << " of seed " << kSeed;
    if (step % 100 == 0) {
      Router late;
      late.Apply(ledger.Everything());
      ASSERT_EQ(late.blocks(), router.blocks()) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace hearth
