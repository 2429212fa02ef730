// Eviction hints of publishers: they change which of its own restore points a tenant loses, and do
// not affect other tenants.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

// A prompt of 64 tokens takes 2 KiB in RAM, which has space for 16 prompts.
class StoreHints : public SteppedStoreFixture, public ::testing::TestWithParam<RetentionPolicy> {
 protected:
  StoreHints() {
    options_.retention = GetParam();
    options_.data_dir = "";
    options_.disk_bytes = 0;
    options_.host_bytes = 32 << 10;
    options_.count_points = false;
  }
  void Publish(uint64_t seed, KeepHint hint, absl::Duration ttl = absl::ZeroDuration(),
               const std::string& tenant = "default") {
    clock_.Advance(absl::Seconds(1));
    const KitPrompt prompt{KitTokens(seed, 65), {}, tenant};
    PublishSpec spec = KitSpec(model_, prompt, {64});
    spec.hint = hint;
    spec.ttl = ttl;
    auto session = store_->Publish(spec).value();
    ASSERT_TRUE(KitPutAll(session.get(), spec, model_, prompt).ok());
    const auto result = session->Commit();
    ASSERT_TRUE(result.ok()) << result.status();
    CheckInvariants(store_.get());
  }
  void PublishMany(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) Publish(first + i, {});
  }
  // Returns whether the prompt is stored. Uses Explain, because a lookup would count as a use.
  bool Has(uint64_t seed) {
    return store_->Explain(KitQuery(model_, Prompt(seed))).value().usable_tokens == 64;
  }
};

TEST_P(StoreHints, PointWithKeepHintIsEvictedLast) {
  Open();
  Publish(1, {60, 0});
  Publish(2, {});
  PublishMany(100, 40);
  EXPECT_TRUE(Has(1));
  EXPECT_FALSE(Has(2)) << "published later, and not kept";
  clock_.Advance(absl::Seconds(60));
  PublishMany(200, 40);
  EXPECT_FALSE(Has(1));
}

TEST_P(StoreHints, OldestKeptPointIsEvictedIfNecessary) {
  Open();
  for (uint64_t seed = 1; seed <= 40; ++seed) Publish(seed, {3600, 0});
  EXPECT_TRUE(Has(40));
  EXPECT_FALSE(Has(1));
}

TEST_P(StoreHints, HigherPriorityIsEvictedLater) {
  Open();
  Publish(1, {0, kMaxPriority});
  Publish(2, {});
  Publish(3, {0, -kMaxPriority});
  PublishMany(100, 13);
  ASSERT_TRUE(Has(1) && Has(2) && Has(3)) << "there is room";
  PublishMany(200, 1);
  EXPECT_FALSE(Has(3));
  EXPECT_TRUE(Has(2));
  PublishMany(300, 12);
  EXPECT_TRUE(Has(1));
  EXPECT_FALSE(Has(2));
}

TEST_P(StoreHints, HintsAffectOnlyOwnTenant) {
  const auto points = [this](KeepHint hint) {
    Open();
    for (uint64_t seed = 1; seed <= 10; ++seed) Publish(seed, hint, absl::ZeroDuration(), "greedy");
    for (uint64_t seed = 1; seed <= 20; ++seed) Publish(seed, {}, absl::ZeroDuration(), "modest");
    for (uint64_t seed = 11; seed <= 14; ++seed)
      Publish(seed, hint, absl::ZeroDuration(), "greedy");
    return std::map<std::string, size_t>{{"greedy", store_->List("greedy").size()},
                                         {"modest", store_->List("modest").size()}};
  };
  const auto without = points({});
  EXPECT_GT(without.at("modest"), 8u);
  EXPECT_EQ(points({3600, kMaxPriority}), without);
}

TEST_P(StoreHints, KeepTimeExtendsTtl) {
  options_.quotas.others.max_ttl_s = 100;
  Open();
  Publish(1, {60, 0}, absl::Seconds(10));
  Publish(2, {}, absl::Seconds(10));
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(Has(1));
  EXPECT_FALSE(Has(2));
  Publish(1, {60, 0});  // begins the keep time again
  clock_.Advance(absl::Seconds(50));
  EXPECT_TRUE(Has(1));
  Publish(1, {3600, 0});
  clock_.Advance(absl::Seconds(101));
  EXPECT_FALSE(Has(1)) << "longer than the tenant may";
}

INSTANTIATE_TEST_SUITE_P(Policies, StoreHints,
                         ::testing::Values(RetentionPolicy::kDefault, RetentionPolicy::kLru));

}  // namespace
}  // namespace hearth
