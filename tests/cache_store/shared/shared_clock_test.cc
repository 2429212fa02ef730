// The machine's clock is set while stores share an engine. This neither starts nor ends a pause.
#include <gtest/gtest.h>

#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

class SharedClockTest : public SharedStoreTest {
 protected:
  void SetUp() override { kit_.steady = &steady_; }
  void Wait(absl::Duration time) {
    steady_.Advance(time);
    kit_.clock.Advance(time);
  }

  FakeClock steady_;
};

TEST_F(SharedClockTest, PauseIgnoresClockChanges) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  other.engine->SetDelay(absl::InfiniteDuration());
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  other.engine->SetDelay(absl::ZeroDuration());
  kit_.clock.Advance(absl::Hours(1));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0) << "it goes on though the clock is set forward";
  kit_.clock.Advance(-absl::Hours(2));
  Wait(SharedLookup::kPause);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
}

TEST_F(SharedClockTest, DropAllIgnoresClockChanges) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  kit_.clock.Advance(-absl::Hours(1));
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  Wait(kit_.shared_options.generation_age * 2);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
}

TEST_F(SharedClockTest, ForwardClockDoesNotRereadNumbers) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const int before = one.engine->gets();
  for (int i = 0; i < 5; ++i) {
    kit_.clock.Advance(absl::Minutes(10));
    Fetch(&one, Prompt(2));
  }
  EXPECT_EQ(one.engine->gets(), before);
}

TEST_F(SharedClockTest, ExpiryExtendsDespiteClockChange) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&one, Prompt(1)), 64);
  one.writes->RunAll();
  kit_.clock.Advance(-absl::Hours(10));
  Wait(absl::Hours(2));
  Fetch(&one, Prompt(1));
  const std::string name = Name(Prompt(1), {0, 16, LayerGroup::kGlobal});
  const absl::Time before = kit_.memory.entries[name].expires;
  kit_.memory.entries[name].expires = kit_.clock.Now() + absl::Minutes(1);
  one.writes->RunAll();
  EXPECT_GT(kit_.memory.entries[name].expires, kit_.clock.Now() + absl::Hours(12));
  EXPECT_LT(kit_.memory.entries[name].expires, before);
}

}  // namespace
}  // namespace hearth
