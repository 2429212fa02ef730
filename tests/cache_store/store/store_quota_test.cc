// Quotas, pin limits and guaranteed bytes of tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_store/base/tenant_accounts.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTokens = 64;

class QuotaTest : public testing::Test {
 protected:
  QuotaTest() {
    // Measure the bytes of one prompt in a store without limits.
    Open({}, 1 << 20);
    EXPECT_TRUE(Publish("probe", 1).ok());
    unit_ = Usage("probe");
    EXPECT_GT(unit_.objects, 1u);
  }
  void Open(const TenantQuotas& quotas, uint64_t host_bytes) {
    StoreOptions options;
    options.host_bytes = host_bytes;
    options.count_points = false;
    options.quotas = quotas;
    store_ = TieredStore::Open(options).value();
  }
  void OpenFor(const std::string& tenant, const TenantQuota& quota, uint64_t host_bytes = 1 << 20) {
    TenantQuotas quotas;
    quotas.by_tenant[tenant] = quota;
    Open(quotas, host_bytes);
  }
  // Prompts of different seeds share no tokens.
  static KitPrompt Prompt(const std::string& tenant, uint64_t seed) {
    return {KitTokens(seed, kTokens), {}, tenant};
  }
  absl::Status Publish(const std::string& tenant, uint64_t seed) {
    const auto result = KitPublish(store_.get(), model_, Prompt(tenant, seed), {kTokens});
    CheckInvariants(store_.get());
    return result.status();
  }
  bool Has(const std::string& tenant, uint64_t seed) {
    KitPrompt longer = Prompt(tenant, seed);
    longer.tokens.push_back(7);
    return KitFetch(store_.get(), model_, longer).value() == kTokens;
  }
  void PinAll(const std::string& tenant) {
    for (const RestorePoint& point : store_->List(tenant)) {
      ASSERT_TRUE(store_->SetPinned(point.id, tenant, true).ok());
    }
  }
  TenantUsage Usage(const std::string& tenant) { return store_->StatsOf(tenant).usage; }

  const Fingerprint model_ = KitModel().Make();
  std::unique_ptr<TieredStore> store_;
  TenantUsage unit_;
};

TEST_F(QuotaTest, QuotaEvictsTenantsOldestPoint) {
  OpenFor("b", {2 * unit_.bytes});
  ASSERT_TRUE(Publish("a", 1).ok());
  for (uint64_t seed : {1, 2, 3}) ASSERT_TRUE(Publish("b", seed).ok());
  EXPECT_FALSE(Has("b", 1));
  EXPECT_TRUE(Has("b", 2));
  EXPECT_TRUE(Has("b", 3));
  EXPECT_TRUE(Has("a", 1)) << "older than any of b's, and not b's";
  EXPECT_EQ(Usage("b").bytes, 2 * unit_.bytes);
  EXPECT_EQ(store_->Stats().removed.at("quota"), 1u);
}

TEST_F(QuotaTest, QuotaLimitsNumberOfObjects) {
  TenantQuota quota;
  quota.max_objects = unit_.objects;
  OpenFor("b", quota);
  ASSERT_TRUE(Publish("b", 1).ok());
  ASSERT_TRUE(Publish("b", 2).ok());
  EXPECT_FALSE(Has("b", 1));
  EXPECT_TRUE(Has("b", 2));
  EXPECT_EQ(Usage("b").objects, unit_.objects);
}

TEST_F(QuotaTest, OversizedPublishIsRefused) {
  OpenFor("b", {2 * unit_.bytes});
  ASSERT_TRUE(Publish("b", 1).ok());
  PinAll("b");
  ASSERT_TRUE(Publish("b", 2).ok());
  // There is space for one restore point in addition to the pinned restore point, but this prompt
  // needs the space of two.
  const KitPrompt twice{KitTokens(3, 2 * kTokens), {}, "b"};
  const auto refused = KitPublish(store_.get(), model_, twice, {2 * kTokens});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr(std::to_string(2 * unit_.bytes) + " bytes"));
  EXPECT_TRUE(Has("b", 1));
  EXPECT_TRUE(Has("b", 2));
  EXPECT_EQ(store_->Stats().counters.at("publishes_refused_quota"), 1u);
  // The refused publish has left no reserved bytes.
  ASSERT_TRUE(Publish("b", 4).ok());
  EXPECT_FALSE(Has("b", 2));
}

// The longer prompt adds few objects of its own, but also uses objects that the evicted shorter
// restore point leaves.
TEST_F(QuotaTest, ObjectsOfEvictedPrefixStayCounted) {
  OpenFor("b", {3 * unit_.bytes});
  ASSERT_TRUE(Publish("b", 1).ok());
  ASSERT_TRUE(Publish("b", 2).ok());
  ASSERT_TRUE(Publish("b", 3).ok());
  const KitPrompt longer{KitTokens(1, kTokens + 16), {}, "b"};
  ASSERT_TRUE(KitPublish(store_.get(), model_, longer, {kTokens + 16}).ok());
  CheckInvariants(store_.get());
  EXPECT_LE(Usage("b").bytes, 3 * unit_.bytes);
}

// A reader may still hold the objects of a restore point that was evicted for the quota. A lookup
// that finds all objects creates the restore point again, which must then fit into the quota.
TEST_F(QuotaTest, RecreatedPointMustFitQuota) {
  OpenFor("b", {2 * unit_.bytes});
  ASSERT_TRUE(Publish("b", 1).ok());
  KitPrompt longer = Prompt("b", 1);
  longer.tokens.push_back(7);
  {
    const auto reader = store_->Fetch(KitQuery(model_, longer), 0, 0).value();
    ASSERT_EQ(reader->plan().usable_tokens, kTokens);
    ASSERT_TRUE(Publish("b", 2).ok());
    ASSERT_TRUE(Publish("b", 3).ok());
    ASSERT_EQ(Usage("b").bytes, 2 * unit_.bytes);
    EXPECT_TRUE(Has("b", 1)) << "held, and so still complete";
    CheckInvariants(store_.get());
    EXPECT_LE(Usage("b").bytes, 2 * unit_.bytes);
  }
  PinAll("b");
  CheckInvariants(store_.get());
}

TEST_F(QuotaTest, SharedObjectsCountOnce) {
  OpenFor("b", {unit_.bytes});
  ASSERT_TRUE(Publish("b", 1).ok());
  ASSERT_TRUE(Publish("b", 1).ok());
  EXPECT_TRUE(Has("b", 1));
  EXPECT_EQ(Usage("b"), unit_);
}

TEST_F(QuotaTest, OwnPinLimitIgnoresOtherTenants) {
  TenantQuotas quotas;
  quotas.by_tenant["b"].max_pinned_bytes = 2 * unit_.bytes;
  quotas.by_tenant["floored"].floor_bytes = unit_.bytes;
  // Half of the bytes above all floor_bytes may be pinned: two restore points of b, and one of any
  // tenant.
  Open(quotas, 7 * unit_.bytes);
  for (const char* tenant : {"a", "b", "floored"}) {
    for (uint64_t seed : {1, 2}) ASSERT_TRUE(Publish(tenant, seed).ok());
  }
  const auto pin = [&](const std::string& tenant, size_t which) {
    const auto pinned = store_->SetPinned(store_->List(tenant).at(which).id, tenant, true);
    CheckInvariants(store_.get());
    return pinned.status();
  };
  ASSERT_TRUE(pin("a", 0).ok());
  EXPECT_THAT(std::string(pin("a", 1).message()),
              HasSubstr("that all tenants without a max_pinned_bytes may pin"));
  EXPECT_TRUE(pin("b", 0).ok());
  EXPECT_TRUE(pin("b", 1).ok());
  EXPECT_TRUE(pin("floored", 0).ok()) << "its floor, which nobody else could have had";
  EXPECT_FALSE(pin("floored", 1).ok()) << "beyond it, and a was first";
  ASSERT_TRUE(store_->SetPinned(store_->List("a").at(0).id, "a", false).ok());
  EXPECT_TRUE(pin("floored", 1).ok());
}

TEST_F(QuotaTest, SumOfPinLimitsMustFit) {
  TenantQuotas quotas;
  quotas.by_tenant["a"].max_pinned_bytes = quotas.by_tenant["b"].max_pinned_bytes = 300;
  EXPECT_TRUE(ValidatePins(PinRoomOf(quotas, 1200, 0.5)).ok());
  EXPECT_EQ(PinRoomOf(quotas, 1200, 0.5).common_bytes(), 0u);
  EXPECT_THAT(std::string(ValidatePins(PinRoomOf(quotas, 1199, 0.5)).message()),
              HasSubstr("must be at most 599 bytes; got 600"));
  quotas.by_tenant["a"].floor_bytes = 200;  // a has 300 bytes, 100 more than its floor_bytes
  EXPECT_EQ(PinRoomOf(quotas, 1200, 0.5).common_bytes(), 100u);
}

TEST_F(QuotaTest, PinsAreLimitedPerTenant) {
  TenantQuota quota;
  quota.max_pinned_bytes = unit_.bytes;
  OpenFor("b", quota);
  for (uint64_t seed : {1, 2}) {
    ASSERT_TRUE(Publish("b", seed).ok());
    ASSERT_TRUE(Publish("a", seed).ok());
  }
  PinAll("a");
  const auto points = store_->List("b");
  ASSERT_TRUE(store_->SetPinned(points[0].id, "b", true).ok());
  EXPECT_EQ(Usage("b").pinned_bytes, unit_.bytes);
  const auto refused = store_->SetPinned(points[1].id, "b", true);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_pinned_bytes"));
}

TEST_F(QuotaTest, GuaranteedBytesSurviveOtherTenants) {
  TenantQuota quota;
  quota.floor_bytes = unit_.bytes;
  OpenFor("b", quota, 3 * unit_.bytes);
  ASSERT_TRUE(Publish("b", 1).ok());
  ASSERT_TRUE(Publish("b", 2).ok());
  for (uint64_t seed : {1, 2, 3, 4, 5}) ASSERT_TRUE(Publish("a", seed).ok());
  EXPECT_FALSE(Has("b", 1)) << "above its floor it is evicted like anybody";
  EXPECT_TRUE(Has("b", 2));
  EXPECT_TRUE(Has("a", 5));
  // If the space is guaranteed to another tenant, the publish is refused, and nothing is evicted
  // before.
  const KitPrompt large{KitTokens(9, 4 * kTokens), {}, "a"};
  EXPECT_FALSE(KitPublish(store_.get(), model_, large, {4 * kTokens}).ok());
  EXPECT_TRUE(Has("a", 5));
  // Publishes of the tenant itself evict its guaranteed restore points.
  for (uint64_t seed : {3, 4, 5}) ASSERT_TRUE(Publish("b", seed).ok());
  EXPECT_FALSE(Has("b", 2));
}

// The bytes of b above its floor_bytes would suffice, but each restore point of b is too large to
// evict without going below floor_bytes.
TEST_F(QuotaTest, GuaranteesOfOthersRefuseOversizedPublish) {
  TenantQuota quota;
  quota.floor_bytes = unit_.bytes + unit_.bytes / 2;
  OpenFor("b", quota, 4 * unit_.bytes);
  ASSERT_TRUE(Publish("c", 1).ok());
  ASSERT_TRUE(Publish("b", 1).ok());
  ASSERT_TRUE(Publish("b", 2).ok());
  const KitPrompt large{KitTokens(9, 4 * kTokens), {}, "a"};
  const auto refused = KitPublish(store_.get(), model_, large, {4 * kTokens});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  CheckInvariants(store_.get());
  EXPECT_TRUE(Has("b", 1));
  EXPECT_TRUE(Has("b", 2));
}

// A restore point between two others of the same prompt shares all its objects with them.
TEST_F(QuotaTest, PublishEvictsAllUnprotectedPoints) {
  TenantQuota quota;
  quota.floor_bytes = unit_.bytes;
  OpenFor("b", quota, 3 * unit_.bytes);
  ASSERT_TRUE(Publish("b", 1).ok());
  const KitPrompt chain{KitTokens(5, 80), {}, "c"};
  ASSERT_TRUE(KitPublish(store_.get(), model_, chain, {48, 64, 80}).ok());
  const KitPrompt large{KitTokens(9, 2 * kTokens), {}, "a"};
  const auto stored = KitPublish(store_.get(), model_, large, {2 * kTokens});
  ASSERT_TRUE(stored.ok()) << stored.status();
  CheckInvariants(store_.get());
  EXPECT_TRUE(Has("b", 1));
}

TEST_F(QuotaTest, SumOfGuaranteesMustFitStore) {
  TenantQuotas quotas;
  quotas.by_tenant["b"].floor_bytes = 100;
  EXPECT_TRUE(quotas.Validate(100).ok());
  EXPECT_THAT(std::string(quotas.Validate(99).message()), HasSubstr("tenants.b.floor_bytes"));
  quotas.by_tenant["b"].max_bytes = 50;
  EXPECT_THAT(std::string(quotas.Validate(100).message()), HasSubstr("max_bytes"));
  quotas = {};
  quotas.others.floor_bytes = 1;
  EXPECT_THAT(std::string(quotas.Validate(100).message()), HasSubstr("default.floor_bytes"));
}

}  // namespace
}  // namespace hearth
