#include "cache_store/catalog/compute_claims.h"

#include <gtest/gtest.h>

#include <string>

namespace hearth {
namespace {

using Boundary = ComputeClaims::Boundary;

class ComputeClaimsTest : public ::testing::Test {
 protected:
  static Digest Key(const std::string& name) { return Sha256(name); }
  static std::vector<KeyedSegment> Chunks(const std::string& names) {
    std::vector<KeyedSegment> chunks;
    for (const char name : names) {
      chunks.emplace_back();
      chunks.back().key = Key(std::string(1, name));
    }
    return chunks;
  }
  ComputeClaims::Id Grant(const std::vector<Boundary>& boundaries, const std::string& chunks,
                          absl::Duration claim = absl::Seconds(10)) {
    return claims_.Grant(boundaries, Chunks(chunks), now_ + claim);
  }
  ComputeClaims::Id Wait(const std::string& key) {
    return claims_.Wait(Key(key), [this, key] { woken_ += key; });
  }
  // Returns the keys of the waiters woken since the last call.
  std::string Woken() {
    for (const auto& wake : wakes_) wake();
    wakes_.clear();
    return std::exchange(woken_, "");
  }

  absl::Time now_ = absl::FromUnixSeconds(1700000000);
  ComputeClaims claims_;
  ComputeClaims::Wakes wakes_;
  std::string woken_;
};

TEST_F(ComputeClaimsTest, FindReturnsLongestPromisedBoundary) {
  EXPECT_FALSE(claims_.Find({{16, Key("a")}}).has_value());
  ASSERT_NE(Grant({{16, Key("a")}, {48, Key("c")}}, "abc"), 0u);
  const auto promise =
      claims_.Find({{16, Key("a")}, {32, Key("b")}, {48, Key("c")}, {64, Key("d")}});
  ASSERT_TRUE(promise.has_value());
  EXPECT_EQ(promise->tokens, 48u);
  EXPECT_EQ(promise->key, Key("c"));
  EXPECT_EQ(promise->until, now_ + absl::Seconds(10));
  EXPECT_EQ(claims_.Find({{16, Key("a")}, {32, Key("b")}})->tokens, 16u);
}

TEST_F(ComputeClaimsTest, OnlyOneClaimPromisesBoundary) {
  const auto first = Grant({{16, Key("a")}}, "a");
  EXPECT_EQ(Grant({{16, Key("a")}}, "a"), 0u);
  const auto second = Grant({{16, Key("a")}, {32, Key("b")}}, "ab");
  ASSERT_NE(second, 0u) << "for what is left";
  claims_.End(second, &wakes_);
  EXPECT_TRUE(claims_.Find({{16, Key("a")}}).has_value()) << "the first one's";
  claims_.End(first, &wakes_);
  EXPECT_FALSE(claims_.Find({{16, Key("a")}}).has_value());
}

TEST_F(ComputeClaimsTest, PublishWakesOnlyWaitersOfItsBoundary) {
  const auto claim = Grant({{16, Key("a")}, {32, Key("b")}}, "ab");
  Wait("a");
  Wait("a");
  Wait("b");
  claims_.Published({Key("a")}, &wakes_);
  EXPECT_EQ(Woken(), "aa");
  EXPECT_FALSE(claims_.Find({{16, Key("a")}}).has_value());
  claims_.End(claim, &wakes_);
  EXPECT_EQ(Woken(), "b");
  EXPECT_EQ(claims_.waiters(), 0u);
}

TEST_F(ComputeClaimsTest, ClaimExpiresAtItsDeadline) {
  Grant({{16, Key("a")}}, "a", absl::Seconds(1));
  Grant({{32, Key("b")}}, "ab", absl::Seconds(2));
  Wait("a");
  Wait("b");
  claims_.Expire(now_ + absl::Milliseconds(999), &wakes_);
  EXPECT_EQ(Woken(), "");
  claims_.Expire(now_ + absl::Seconds(1), &wakes_);
  EXPECT_EQ(Woken(), "a");
  claims_.Expire(now_ + absl::Seconds(5), &wakes_);
  EXPECT_EQ(Woken(), "b");
  EXPECT_EQ(claims_.claims(), 0u);
  EXPECT_EQ(claims_.SharedChunks(Chunks("a")), 0u);
}

TEST_F(ComputeClaimsTest, EndingExpiredClaimKeepsNewClaim) {
  const auto first = Grant({{16, Key("a")}}, "a");
  claims_.Expire(now_ + absl::Seconds(10), &wakes_);
  ASSERT_NE(Grant({{16, Key("a")}}, "a"), 0u);
  Wait("a");
  claims_.End(first, &wakes_);
  claims_.End(12345, &wakes_);
  EXPECT_EQ(Woken(), "");
  EXPECT_TRUE(claims_.Find({{16, Key("a")}}).has_value());
}

TEST_F(ComputeClaimsTest, CancelledWaiterIsNotWoken) {
  const auto claim = Grant({{16, Key("a")}}, "a");
  const auto waiter = Wait("a");
  claims_.StopWaiting(waiter);
  claims_.StopWaiting(waiter);
  claims_.End(claim, &wakes_);
  EXPECT_EQ(Woken(), "");
  EXPECT_EQ(claims_.waiters(), 0u);
}

TEST_F(ComputeClaimsTest, SharedChunksIgnoreEndedClaims) {
  const auto first = Grant({{48, Key("c")}}, "abc");
  EXPECT_EQ(claims_.SharedChunks(Chunks("abx")), 2u);
  EXPECT_EQ(claims_.SharedChunks(Chunks("x")), 0u);
  const auto second = Grant({{48, Key("x")}}, "abx");
  claims_.End(first, &wakes_);
  EXPECT_EQ(claims_.SharedChunks(Chunks("abc")), 2u);
  claims_.End(second, &wakes_);
  EXPECT_EQ(claims_.SharedChunks(Chunks("abc")), 0u);
}

TEST_F(ComputeClaimsTest, NumberOfClaimsAndWaitersIsLimited) {
  for (size_t i = 0; i < ComputeClaims::kMaxClaims; ++i) {
    ASSERT_NE(Grant({{16, Key(std::to_string(i))}}, ""), 0u);
  }
  EXPECT_EQ(Grant({{16, Key("one more")}}, ""), 0u);
  for (size_t i = 0; i < ComputeClaims::kMaxWaiters; ++i) ASSERT_NE(Wait("0"), 0u);
  EXPECT_EQ(Wait("0"), 0u);
}

TEST_F(ComputeClaimsTest, TotalKeysOfClaimsAreLimited) {
  const std::vector<KeyedSegment> half(ComputeClaims::kMaxKeys / 2);
  const auto grant = [&](const std::string& key) {
    return claims_.Grant({{16, Key(key)}}, half, absl::InfiniteFuture());
  };
  const auto first = grant("a");
  EXPECT_NE(first, 0u);
  EXPECT_NE(grant("b"), 0u);
  EXPECT_EQ(grant("c"), 0u);
  claims_.End(first, &wakes_);
  EXPECT_NE(grant("c"), 0u);
}

}  // namespace
}  // namespace hearth
