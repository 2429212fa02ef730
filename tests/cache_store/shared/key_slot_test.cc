#include <gtest/gtest.h>

#include "cache_store/shared/redis/slot_map.h"

namespace hearth {
namespace {

TEST(KeySlot, MatchesRedisForKnownKeys) {
  // Expected values: results of CLUSTER KEYSLOT of Redis 7.0.15.
  EXPECT_EQ(KeySlot("123456789"), 0x31C3);  // the check value of CRC-16/XMODEM
  EXPECT_EQ(KeySlot("foo"), 12182);
  EXPECT_EQ(KeySlot("somekey"), 11058);
  EXPECT_EQ(KeySlot(""), 0);
}

TEST(KeySlot, HashesOnlyFirstBraces) {
  EXPECT_EQ(KeySlot("h1:{abc}:g:0"), KeySlot("abc"));
  EXPECT_EQ(KeySlot("h1:{abc}:l:7"), KeySlot("h1:{abc}:g:0"));
  EXPECT_EQ(KeySlot("{abc}{def}"), KeySlot("abc"));
  EXPECT_EQ(KeySlot("foo{{bar}}zap"), KeySlot("{bar"));
}

TEST(KeySlot, EmptyBracesHashWholeKey) {
  EXPECT_NE(KeySlot("foo{}{bar}"), KeySlot("bar"));
  EXPECT_NE(KeySlot("foo{bar"), KeySlot("bar"));
  EXPECT_NE(KeySlot("}foo{bar"), KeySlot("bar"));
}

}  // namespace
}  // namespace hearth
