#include "proto/prefix_key.h"

#include <gtest/gtest.h>

#include <set>

namespace hearth {
namespace {

using Ids = std::vector<uint32_t>;

TEST(PrefixKeyTest, RootDependsOnModelTenantAndSecret) {
  const Digest a = Sha256("a"), b = Sha256("b");
  const std::set<Digest> keys = {RootKey(a, "t", "s"), RootKey(b, "t", "s"), RootKey(a, "u", "s"),
                                 RootKey(a, "t", "r"), RootKey(a, "ts", ""), RootKey(a, "", "ts")};
  EXPECT_EQ(keys.size(), 6u);
}

TEST(PrefixKeyTest, SegmentsDependOnAllThatCameBefore) {
  const Digest root = RootKey(Sha256("a"), "t", "s");
  const Digest first = SegmentKey(root, Ids{1, 2, 3}, Ids{});
  EXPECT_NE(SegmentKey(first, Ids{4}, Ids{}), SegmentKey(root, Ids{4}, Ids{}));
  EXPECT_NE(first, SegmentKey(root, Ids{1, 2}, Ids{}));
  EXPECT_EQ(first, SegmentKey(root, Ids{1, 2, 3}, Ids{}));
}

TEST(PrefixKeyTest, TokensAndCutsNeverRunIntoEachOther) {
  const Digest root = RootKey(Sha256("a"), "t", "s");
  EXPECT_NE(SegmentKey(root, Ids{1, 2, 3}, Ids{}), SegmentKey(root, Ids{1, 2}, Ids{3}));
  EXPECT_NE(SegmentKey(root, Ids{1, 2, 3}, Ids{1}), SegmentKey(root, Ids{1, 2, 3}, Ids{2}));
}

}  // namespace
}  // namespace hearth
