#include "services/events/batch_log.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

TEST(BatchLogTest, NumbersHaveNoGapAndTheLastBatchesAreKept) {
  BatchLog log(3, 1000, 50);
  EXPECT_TRUE(log.From(0, 10).empty());
  for (int i = 0; i < 5; ++i) log.Append(std::string(1, static_cast<char>('a' + i)));
  EXPECT_EQ(log.first(), 52u);
  EXPECT_EQ(log.next(), 55u);
  const std::vector<KvBatch> all = log.From(0, 10);
  ASSERT_EQ(all.size(), 3u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].number, 52 + i);
    EXPECT_EQ(*all[i].payload, std::string(1, static_cast<char>('c' + i)));
  }
  EXPECT_EQ(log.From(53, 1).at(0).number, 53u);
  EXPECT_EQ(log.From(53, 10).size(), 2u);
  EXPECT_TRUE(log.From(55, 10).empty());
  EXPECT_TRUE(log.From(~uint64_t{0}, 10).empty());
}

TEST(BatchLogTest, BytesAreBoundedToo) {
  BatchLog log(100, 10, 0);
  for (int i = 0; i < 9; ++i) log.Append("four");
  EXPECT_EQ(log.bytes(), 8u);
  EXPECT_EQ(log.first(), 7u);
  log.Append(std::string(50, 'x'));  // the last one is kept, whatever its size
  EXPECT_EQ(log.bytes(), 50u);
  EXPECT_EQ(log.first(), 9u);
  log.Append("four");
  EXPECT_EQ(log.bytes(), 4u);
}

TEST(BatchLogTest, BatchesWithoutEventsTakeNumbersAndNobodysPlace) {
  BatchLog log(2, 10, 50);
  log.Append("aaaa");
  log.Append("bbbb");
  log.AppendEmpty(20, "none");
  EXPECT_EQ(log.first(), 50u);
  EXPECT_EQ(log.next(), 72u);
  EXPECT_EQ(log.bytes(), 8u);
  EXPECT_EQ(*log.From(71, 10).at(0).payload, "none");
  log.Append("cccc");
  EXPECT_EQ(log.first(), 51u);
  log.Append("dddd");  // what is kept begins with those
  EXPECT_EQ(log.first(), 52u);
  EXPECT_EQ(*log.From(52, 1).at(0).payload, "none");
  log.Append("eeee");
  EXPECT_EQ(log.first(), 73u);
  EXPECT_EQ(log.bytes(), 8u);
  EXPECT_EQ(*log.From(0, 1).at(0).payload, "dddd");
}

}  // namespace
}  // namespace hearth
