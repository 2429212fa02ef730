// A store remembers the spaces of a limited number of tenants; it reads the spaces of other tenants
// again.
#include "cache_store/shared/tier/shared_spaces.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

class SharedSpacesTest : public SharedStoreTest {
 protected:
  SharedSpacesTest() { store_ = kit_.Node(); }
  SharedSpaces Spaces(SharedNode* node) {
    return SharedSpaces(node->engine, node->behind, &kit_.clock, &kit_.clock,
                        ReadSecret(kit_.secret_file).value(), absl::Seconds(1));
  }
  absl::Time Soon() { return kit_.clock.Now() + absl::Seconds(1); }
  // Begins the spaces of kMaxTenants other tenants, one after the other. The spaces remember no
  // more tenants.
  void LookForOthers(SharedSpaces* spaces) {
    for (size_t i = 0; i < SharedSpaces::kMaxTenants; ++i) {
      kit_.clock.Advance(absl::Microseconds(100));
      ASSERT_TRUE(spaces->Begin(absl::StrCat("other ", i), Soon()).ok());
    }
  }
  absl::Status DropAll(SharedSpaces* spaces) {
    absl::Status written;
    absl::Status status = spaces->DropAll("default", false, Soon(), &written).status();
    status.Update(written);
    return status;
  }
  size_t Points() { return store_.store->List("default").size(); }

  SharedNode store_;
};

TEST_F(SharedSpacesTest, DropIsNotRepeatedForForgottenTenant) {
  SharedNode other = kit_.Node();
  SharedSpaces spaces = Spaces(&store_), theirs = Spaces(&other);
  Publish(&store_, Prompt(1), {64});
  ASSERT_TRUE(spaces.Begin("default", Soon()).ok());
  ASSERT_TRUE(DropAll(&theirs).ok());
  kit_.clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(spaces.Of("default", Soon()).ok());
  EXPECT_EQ(Points(), 0u);
  Publish(&store_, Prompt(1), {64});
  LookForOthers(&spaces);
  LookForOthers(&spaces);
  kit_.clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(spaces.Of("default", Soon()).ok());
  EXPECT_EQ(Points(), 1u);
  // A later drop is applied.
  ASSERT_TRUE(DropAll(&theirs).ok());
  kit_.clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(spaces.Of("default", Soon()).ok());
  EXPECT_EQ(Points(), 0u);
}

TEST_F(SharedSpacesTest, LookupDuringReadAppliesDrop) {
  SharedNode other = kit_.Node();
  SharedSpaces spaces = Spaces(&store_), theirs = Spaces(&other);
  Publish(&store_, Prompt(1), {64});
  ASSERT_TRUE(DropAll(&theirs).ok());
  int left = -1;
  store_.engine->OnGet([&](int) {
    if (std::exchange(left, 0) >= 0) return;
    spaces.CheckForDrops("default", Soon());
    left = static_cast<int>(Points());
  });
  spaces.CheckForDrops("default", Soon());
  EXPECT_EQ(left, 0);
  // After that, the engine is not asked again.
  const int gets = store_.engine->gets();
  spaces.CheckForDrops("default", Soon());
  EXPECT_EQ(store_.engine->gets(), gets);
}

// The engine is asked only once a second, even for a tenant without entries.
TEST_F(SharedSpacesTest, EngineReadsForUnknownTenantAreLimited) {
  SharedSpaces spaces = Spaces(&store_);
  for (int i = 0; i < 3; ++i) spaces.CheckForDrops("nobody", Soon());
  EXPECT_EQ(store_.engine->gets(), 1);
  kit_.clock.Advance(absl::Seconds(2));
  spaces.CheckForDrops("nobody", Soon());
  EXPECT_EQ(store_.engine->gets(), 2);
}

// The engine has lost a drop number, which came from a clock ahead of this store's clock.
TEST_F(SharedSpacesTest, DropNumberExceedsStoresLargerNumber) {
  SharedSpaces spaces = Spaces(&store_);
  const auto ahead = static_cast<uint64_t>(absl::ToUnixMicros(kit_.clock.Now() + absl::Hours(1)));
  ASSERT_TRUE(store_.behind->RaiseDropNumber("default", ahead, false).ok());
  ASSERT_TRUE(DropAll(&spaces).ok());
  EXPECT_EQ(kit_.Space("default").drop_number(), ahead + 1);
  EXPECT_EQ(store_.behind->DropNumber("default"), ahead + 1);
}

TEST_F(SharedSpacesTest, NumbersOfForgottenTenantAreReread) {
  SharedSpaces spaces = Spaces(&store_);
  const auto first = spaces.Begin("first", Soon());
  ASSERT_TRUE(first.ok());
  LookForOthers(&spaces);
  const int before = store_.engine->gets();
  const auto again = spaces.Of("first", Soon());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->generation(), (*first)->generation());
  EXPECT_EQ(store_.engine->gets(), before + 1);
}

}  // namespace
}  // namespace hearth
