// The bytes of batches. events_format_test.py reads and writes the same with vLLM's own library.
#include "services/events/kv_batch.h"

#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

namespace hearth {
namespace {

using Value = nlohmann::json;

const absl::Time kMade = absl::FromUnixMicros(1764000000123456);

std::vector<Value> Decoded(const std::vector<KvEvent>& events, const KvLabels& labels) {
  std::vector<Value> batches;
  for (const std::string& payload : EncodeBatches(events, labels, kMade)) {
    batches.push_back(Value::from_msgpack(payload));
  }
  return batches;
}

TEST(KvBatchTest, TheBytesAreThoseOfTheGoldenFile) {
  const uint64_t first = (uint64_t{1} << 62) | 5;
  BlocksStored root{{first, first + 1}, 0, {2, 300, 70000, 262143}, 2};
  BlocksStored next{{first + 2}, first + 1, {7, 8}, 2};
  const std::vector<std::string> batches = EncodeBatches(
      {AllBlocksCleared{}, root, next, BlocksRemoved{{first + 2, first + 1}}}, {"CPU", ""}, kMade);
  const std::vector<std::string> adapters =
      EncodeBatches({root, BlocksRemoved{{first}}}, {"GPU", "tales"}, kMade);
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(adapters.size(), 1u);
  std::ifstream file(HEARTH_KV_GOLDEN);
  std::string line;
  for (const std::string& batch : {batches[0], adapters[0]}) {
    ASSERT_TRUE(std::getline(file, line));
    EXPECT_EQ(absl::BytesToHexString(batch), line);
  }
}

TEST(KvBatchTest, AnEmptyListOfEventsIsNoBatch) {
  EXPECT_TRUE(EncodeBatches({}, {}, kMade).empty());
}

TEST(KvBatchTest, ABatchWithoutEventsIsOneAllTheSame) {
  const Value batch = Value::from_msgpack(EncodeEmptyBatch(kMade));
  const Value cleared = Decoded({AllBlocksCleared{}}, {}).at(0);
  ASSERT_EQ(batch.size(), cleared.size());
  EXPECT_EQ(batch[0], cleared[0]);
  EXPECT_EQ(batch[1], Value::array());
  EXPECT_EQ(batch[2], cleared[2]);
}

TEST(KvBatchTest, ALongPromptIsDividedAndItsPartsJoin) {
  constexpr uint32_t kBlockTokens = 16;
  constexpr size_t kBlocks = 3 * kMaxBatchTokens / kBlockTokens - 1;
  BlocksStored stored;
  stored.block_tokens = kBlockTokens;
  for (size_t i = 0; i < kBlocks; ++i) stored.ids.push_back(1000 + i);
  stored.parent_id = 999;
  stored.token_ids.resize(kBlocks * kBlockTokens, 3);
  const std::vector<Value> batches = Decoded({stored}, {});
  ASSERT_EQ(batches.size(), 3u);
  uint64_t parent = 999;
  size_t blocks = 0;
  for (const Value& batch : batches) {
    ASSERT_EQ(batch[1].size(), 1u);
    const Value& event = batch[1][0];
    EXPECT_EQ(event[2], parent);
    EXPECT_LE(event[3].size(), kMaxBatchTokens);
    EXPECT_EQ(event[3].size(), event[1].size() * kBlockTokens);
    parent = event[1].back().get<uint64_t>();
    blocks += event[1].size();
  }
  EXPECT_EQ(blocks, kBlocks);
}

TEST(KvBatchTest, ManyEventsShareABatchAndManyRemovalsDoNot) {
  std::vector<KvEvent> events;
  for (uint64_t i = 0; i < 100; ++i) events.emplace_back(BlocksStored{{i + 1}, 0, {1, 2}, 2});
  EXPECT_EQ(Decoded(events, {}).size(), 1u);
  BlocksRemoved removed;
  removed.ids.resize(2 * kMaxBatchRemovals + 1, 5);
  const std::vector<Value> batches = Decoded({removed}, {});
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[2][1][0][1].size(), 1u);
}

}  // namespace
}  // namespace hearth
