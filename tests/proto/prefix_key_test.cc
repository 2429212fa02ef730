#include "proto/prefix_key.h"

#include <gtest/gtest.h>

#include <set>

namespace hearth {
namespace {

using Ids = std::vector<uint32_t>;

TEST(PrefixKeyTest, RootKeyDependsOnEveryInput) {
  const Digest a = Sha256("a"), b = Sha256("b");
  const std::set<Digest> keys = {
      RootKey(a, "t", "s"), RootKey(b, "t", "s"), RootKey(a, "u", "s"),    RootKey(a, "t", "r"),
      RootKey(a, "ts", ""), RootKey(a, "", "ts"), RootKey(a, "t", "s", 1), RootKey(a, "t", "s", 2)};
  EXPECT_EQ(keys.size(), 8u);
  EXPECT_EQ(RootKey(a, "t", "s", 0), RootKey(a, "t", "s"));
}

TEST(PrefixKeyTest, SegmentKeyDependsOnParent) {
  const Digest root = RootKey(Sha256("a"), "t", "s");
  const Digest first = SegmentKey(root, Ids{1, 2, 3}, Ids{});
  EXPECT_NE(SegmentKey(first, Ids{4}, Ids{}), SegmentKey(root, Ids{4}, Ids{}));
  EXPECT_NE(first, SegmentKey(root, Ids{1, 2}, Ids{}));
  EXPECT_EQ(first, SegmentKey(root, Ids{1, 2, 3}, Ids{}));
}

TEST(PrefixKeyTest, TokensAndCutsHashDifferently) {
  const Digest root = RootKey(Sha256("a"), "t", "s");
  EXPECT_NE(SegmentKey(root, Ids{1, 2, 3}, Ids{}), SegmentKey(root, Ids{1, 2}, Ids{3}));
  EXPECT_NE(SegmentKey(root, Ids{1, 2, 3}, Ids{1}), SegmentKey(root, Ids{1, 2, 3}, Ids{2}));
}

TEST(PrefixKeyTest, ChunkIdIsPositiveAsInt64) {
  for (const Digest& key : {Digest{}, Sha256("a"), RootKey(Sha256("b"), "t", "s")}) {
    EXPECT_GE(ChunkId(key), uint64_t{1} << 62);
    EXPECT_LT(ChunkId(key), uint64_t{1} << 63);
  }
  Digest key{};
  key[0] = 0x0d;
  key[7] = 0xff;  // the two highest bits of key[7] are not part of the id
  key[8] = 0xee;
  EXPECT_EQ(ChunkId(key), 0x7f0000000000000du);
}

}  // namespace
}  // namespace hearth
