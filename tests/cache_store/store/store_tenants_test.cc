// Tenants share the public namespace, but the work of a lookup does not show whether other tenants
// have stored a prompt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/store/calls/store.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kPointTokens = 64;

class StoreTenants : public ::testing::Test {
 protected:
  StoreTenants() {
    StoreOptions options;
    options.host_bytes = 1 << 20;
    opened_ = TieredStore::Open(options).value();
    store_ = static_cast<Store*>(opened_.get());
  }
  static KitPrompt Prompt(const std::string& tenant, uint64_t seed, uint32_t tokens) {
    return {KitTokens(seed, tokens), {}, tenant};
  }
  void Publish(const std::string& tenant, uint64_t seed, uint32_t tokens) {
    ASSERT_TRUE(KitPublish(store_, model_, Prompt(tenant, seed, tokens), {tokens}).ok());
  }
  // Returns a query of tenant "a". `reads`: whether it may read the public namespace.
  PrefixQuery QueryOfA(uint64_t seed, uint32_t tokens, bool reads = true) {
    PrefixQuery query = KitQuery(model_, Prompt("a", seed, tokens));
    if (reads) query.public_tenant = "public";
    return query;
  }
  LookupPlan FetchAsA(uint64_t seed, uint32_t tokens, bool reads = true) {
    const auto session = store_->Fetch(QueryOfA(seed, tokens, reads), 0, 0).value();
    const LookupPlan plan = session->plan();
    if (plan.usable_tokens > 0) {
      // The kit's bytes differ between tenants, so expect the bytes of the tenant whose prefix was
      // found.
      const std::string whose = plan.from_public ? "public" : "a";
      EXPECT_TRUE(KitReadAll(session.get(), model_, Prompt(whose, seed, tokens)).ok());
    }
    CheckInvariants(store_);
    return plan;
  }

  const Fingerprint model_ = KitModel().Make();
  std::unique_ptr<TieredStore> opened_;
  Store* store_ = nullptr;
};

TEST_F(StoreTenants, LongerPublicPrefixIsRead) {
  Publish("public", 1, kPointTokens);
  EXPECT_EQ(FetchAsA(1, kPointTokens + 9, /*reads=*/false).usable_tokens, 0u)
      << "who is not let in";
  store_->Observe(model_, "a");
  LookupPlan plan = FetchAsA(1, kPointTokens + 9);
  EXPECT_EQ(plan.usable_tokens, kPointTokens);
  EXPECT_TRUE(plan.from_public);
  EXPECT_EQ(store_->Stats().counters.at("public_hits"), 1u);
  Publish("a", 1, 32);
  EXPECT_TRUE(FetchAsA(1, kPointTokens + 9).from_public) << "the tenant's own is shorter";
  Publish("a", 1, kPointTokens);
  plan = FetchAsA(1, kPointTokens + 9);
  EXPECT_EQ(plan.usable_tokens, kPointTokens);
  EXPECT_FALSE(plan.from_public) << "of two that are as long, the tenant's own";
  Publish("public", 1, kPointTokens + 16);
  EXPECT_EQ(FetchAsA(1, kPointTokens + 30).usable_tokens, kPointTokens + 16);
}

TEST_F(StoreTenants, PublicReadStoresNothing) {
  Publish("public", 1, kPointTokens);
  store_->Observe(model_, "a");
  const uint64_t bytes = store_->StatsOf("public").usage.bytes;
  EXPECT_EQ(FetchAsA(1, kPointTokens + 9).usable_tokens, kPointTokens);
  EXPECT_EQ(store_->StatsOf("a").usage, TenantUsage());
  EXPECT_EQ(store_->StatsOf("public").usage.bytes, bytes);
  EXPECT_TRUE(store_->List("a").empty());
  // A publish that continues the public prompt stores the whole prompt under the tenant's own name.
  Publish("a", 1, kPointTokens + 16);
  EXPECT_GT(store_->StatsOf("a").usage.bytes, bytes);
  EXPECT_EQ(store_->StatsOf("public").usage.bytes, bytes);
}

TEST_F(StoreTenants, ExplainNamesPublicNamespace) {
  Publish("public", 1, kPointTokens);
  Publish("a", 1, 32);
  const ExplainReport report = store_->Explain(QueryOfA(1, kPointTokens + 9)).value();
  EXPECT_EQ(report.usable_tokens, kPointTokens);
  EXPECT_THAT(report.summary, AllOf(HasSubstr("public namespace \"public\""),
                                    HasSubstr("the tenant's own namespace: hit: 32")));
  uint32_t previous = 0;
  for (const BoundaryReport& boundary : report.boundaries) {
    EXPECT_GT(boundary.boundary, previous);
    previous = boundary.boundary;
    if (boundary.boundary == 32) {
      EXPECT_TRUE(boundary.usable && !boundary.from_public);
      EXPECT_TRUE(boundary.restore_point_id.has_value());
    }
    if (boundary.boundary != kPointTokens) continue;
    EXPECT_TRUE(boundary.usable && boundary.from_public);
    EXPECT_GT(boundary.bytes, 0u);
    // The report does not reveal the last use by other tenants.
    EXPECT_FALSE(boundary.restore_point_id.has_value());
    EXPECT_EQ(boundary.age, absl::ZeroDuration());
  }
  EXPECT_GE(previous, kPointTokens);
  EXPECT_EQ(store_->Explain(QueryOfA(1, kPointTokens + 9, false))->usable_tokens, 32u);
}

TEST_F(StoreTenants, PublicPrefixNeedsNoClaim) {
  Publish("public", 1, kPointTokens);
  store_->Observe(model_, "a");
  ClaimRequest ask;
  ask.compute_time = absl::Seconds(10);
  ask.min_tokens = 16;
  const ClaimDecision turn = store_->Claim(QueryOfA(1, kPointTokens + 1), ask).value();
  EXPECT_EQ(turn.role, ClaimRole::kNone);
  EXPECT_EQ(turn.usable_tokens, kPointTokens);
  const ClaimDecision alone = store_->Claim(QueryOfA(1, kPointTokens + 1, false), ask).value();
  EXPECT_EQ(alone.role, ClaimRole::kCompute);
}

// Compares the number of index lookups, because times cannot be tested reliably.
TEST_F(StoreTenants, LookupWorkHidesOtherTenants) {
  for (uint64_t seed : {1, 2, 3}) Publish("b", seed, kPointTokens);
  Publish("a", 9, kPointTokens);  // makes the fingerprint known to the store
  const auto finds_of = [&](uint64_t seed, const std::string& public_tenant) {
    PrefixQuery query = QueryOfA(seed, kPointTokens + 9, false);
    query.public_tenant = public_tenant;
    const uint64_t before = IndexFinds(store_);
    EXPECT_EQ(store_->Fetch(query, 0, 0).value()->plan().usable_tokens, 0u);
    const uint64_t fetched = IndexFinds(store_) - before;
    EXPECT_TRUE(store_->Explain(query).ok());
    ClaimRequest ask;
    EXPECT_TRUE(store_->Claim(query, ask).ok());
    return std::make_pair(fetched, IndexFinds(store_) - before);
  };
  for (const std::string public_tenant : {"", "public"}) {
    const auto unknown = finds_of(1000, public_tenant);
    EXPECT_GT(unknown.first, 0u);
    for (uint64_t seed : {1, 2, 3}) EXPECT_EQ(finds_of(seed, public_tenant), unknown);
  }
  // The number of index lookups does differ between stored and unknown prompts of the tenant
  // itself.
  EXPECT_NE(finds_of(1000, "b").first, 0u);
  const uint64_t before = IndexFinds(store_);
  EXPECT_GT(store_->Fetch(QueryOfA(9, kPointTokens + 9, false), 0, 0).value()->plan().usable_tokens,
            0u);
  EXPECT_GT(IndexFinds(store_) - before, finds_of(1000, "").first);
}

TEST_F(StoreTenants, ForgottenTenantsEntriesAreServed) {
  Publish("first", 1, kPointTokens);
  for (size_t i = 0; i < FingerprintBook::kMaxTenants + 10; ++i) {
    store_->Observe(model_, "visitor-" + std::to_string(i));
  }
  Publish("last", 1, kPointTokens);
  for (const std::string tenant : {"first", "last"}) {
    EXPECT_EQ(KitFetch(store_, model_, Prompt(tenant, 1, kPointTokens + 1)).value(), kPointTokens)
        << tenant;
  }
}

// The work of a publish is boundaries times chunks, and one publish must not keep the store busy
// for minutes.
TEST_F(StoreTenants, TooManyBoundariesAreRefused) {
  PublishSpec spec;
  spec.fingerprint = model_;
  spec.tenant = "a";
  spec.token_ids = KitTokens(1, 4096 * 16);
  for (uint32_t chunk = 4096 - 300; chunk <= 4096; ++chunk) spec.boundaries.push_back(chunk * 16);
  const auto refused = store_->Publish(spec);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("boundaries: 301 boundaries need more than 1048576 objects"));
  spec.boundaries = {4096 * 16};
  EXPECT_THAT(std::string(store_->Publish(spec).status().message()), HasSubstr("not announced"));
}

TEST(FingerprintBookTest, OldestTenantWithoutEntriesIsForgotten) {
  FingerprintBook book;
  const Fingerprint model = KitModel().Make();
  const auto in_use = book.Learn(model, "0");
  for (size_t i = 1; i < FingerprintBook::kMaxTenants; ++i) book.Learn(model, std::to_string(i));
  book.Learn(model, "1");
  book.Learn(model, "one more");
  EXPECT_EQ(book.tenants(), FingerprintBook::kMaxTenants);
  EXPECT_NE(book.Find(model.digest(), "0"), nullptr) << "referred to";
  EXPECT_NE(book.Find(model.digest(), "1"), nullptr) << "heard of again";
  EXPECT_EQ(book.Find(model.digest(), "2"), nullptr);
  EXPECT_NE(book.Find(model.digest(), "one more"), nullptr);
}

}  // namespace
}  // namespace hearth
