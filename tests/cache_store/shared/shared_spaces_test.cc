// The spaces that a store remembers: there is room for so many tenants, and some are forgotten.
#include "cache_store/shared/tier/shared_spaces.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_shared_engine.h"

namespace hearth {
namespace {

class SharedSpacesTest : public ::testing::Test {
 protected:
  SharedSpaces Spaces(SharedDrops* drops) {
    return SharedSpaces(
        &engine_, drops, &clock_, &clock_, [] { return std::string(32, 's'); }, absl::Seconds(1));
  }
  absl::Time Soon() { return clock_.Now() + absl::Seconds(1); }
  // As many tenants as there is room for, a moment apart.
  void LookForOthers(SharedSpaces* spaces) {
    for (size_t i = 0; i < SharedSpaces::kMaxTenants; ++i) {
      clock_.Advance(absl::Microseconds(100));
      ASSERT_TRUE(spaces->Begin(absl::StrCat("other ", i), Soon()).ok());
    }
  }

  FakeClock clock_;
  FakeSharedMemory memory_;
  FakeSharedEngine engine_{&memory_, &clock_};
  std::map<std::string, int> dropped_;
  SharedDrops drops_{[this](const std::string& tenant, bool) {
    ++dropped_[tenant];
    return absl::OkStatus();
  }};
  SharedDrops their_drops_{[](const std::string&, bool) { return absl::OkStatus(); }};
};

TEST_F(SharedSpacesTest, ADropOfAllIsNotHeardOfTwiceHoweverManyTenantsThereAre) {
  SharedSpaces spaces = Spaces(&drops_), theirs = Spaces(&their_drops_);
  ASSERT_TRUE(spaces.Begin("dropped", Soon()).ok());
  ASSERT_TRUE(theirs.DropAll("dropped", false, true, Soon()).ok());
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(spaces.Of("dropped", Soon()).ok());
  EXPECT_EQ(dropped_["dropped"], 1);
  LookForOthers(&spaces);
  LookForOthers(&spaces);
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(spaces.Of("dropped", Soon()).ok());
  EXPECT_EQ(dropped_["dropped"], 1);
  // The next one is.
  ASSERT_TRUE(theirs.DropAll("dropped", false, true, Soon()).ok());
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(spaces.Of("dropped", Soon()).ok());
  EXPECT_EQ(dropped_["dropped"], 2);
}

// Many look at once after a start: none of them is to go on before the engine told.
TEST_F(SharedSpacesTest, WhoLooksWhileAnotherAsksFirstHearsOfADropToo) {
  SharedSpaces spaces = Spaces(&drops_), theirs = Spaces(&their_drops_);
  ASSERT_TRUE(spaces.Begin("another", Soon()).ok());
  ASSERT_TRUE(theirs.DropAll("dropped", false, true, Soon()).ok());
  int heard = -1;
  engine_.OnGet([&](int) {
    if (std::exchange(heard, 0) >= 0) return;
    spaces.HearFirst("dropped", Soon());
    heard = dropped_["dropped"];
  });
  spaces.HearFirst("dropped", Soon());
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(dropped_["dropped"], 1);
  // Once that is known nobody asks.
  const int gets = engine_.gets();
  spaces.HearFirst("dropped", Soon());
  EXPECT_EQ(engine_.gets(), gets);
}

// The engine lost the mark of one that was made by a clock ahead of this one.
TEST_F(SharedSpacesTest, ADropOfAllIsLaterThanAnyThatWasDone) {
  const std::string mark = SharedSpace(std::string(32, 's'), "dropped", 0).DropName();
  const auto ahead = static_cast<uint64_t>(absl::ToUnixMicros(clock_.Now() + absl::Hours(1)));
  bool force = false;
  SharedDrops other_drops([&](const std::string& tenant, bool forced) {
    ++dropped_[tenant];
    force = forced;
    return absl::OkStatus();
  });
  their_drops_.NoteDone(mark, {ahead, ahead});
  other_drops.NoteDone(mark, {ahead, 0});
  SharedSpaces theirs = Spaces(&their_drops_), spaces = Spaces(&other_drops);
  ASSERT_TRUE(theirs.DropAll("dropped", false, true, Soon()).ok());
  ASSERT_TRUE(spaces.Of("dropped", Soon()).ok());
  EXPECT_EQ(dropped_["dropped"], 1);
  EXPECT_TRUE(force) << "the one by force, which this one did not hear of";
}

TEST_F(SharedSpacesTest, TheLongestUnusedTenantsAreForgottenAlone) {
  SharedSpaces spaces = Spaces(&drops_);
  ASSERT_TRUE(spaces.Begin("first", Soon()).ok());
  LookForOthers(&spaces);
  const int before = engine_.gets();
  ASSERT_TRUE(spaces.Of(absl::StrCat("other ", SharedSpaces::kMaxTenants / 2), Soon()).ok());
  EXPECT_EQ(engine_.gets(), before);
  ASSERT_TRUE(spaces.Of("first", Soon()).ok());
  EXPECT_EQ(engine_.gets(), before + 1);
}

}  // namespace
}  // namespace hearth
