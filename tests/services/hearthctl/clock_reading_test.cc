#include "services/hearthctl/commands/clock_reading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hearth {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

TEST(ClockReading, HalfOfTheRoundTripIsDoubt) {
  const ClockReading reading =
      ReadClock("store", kNow + absl::Milliseconds(1300), kNow, kNow + absl::Milliseconds(600));
  EXPECT_EQ(reading.ahead, absl::Seconds(1));
  EXPECT_EQ(reading.doubt, absl::Milliseconds(300));
}

TEST(ClockReading, AClockOfOursThatWasSetBackMeanwhileIsNoDoubtBelowZero) {
  EXPECT_EQ(ReadClock("store", kNow, kNow, kNow - absl::Seconds(5)).doubt, absl::ZeroDuration());
}

TEST(ClockReading, ASecondBeyondDoubtIsApart) {
  const absl::Duration doubt = absl::Milliseconds(100);
  EXPECT_TRUE(CompareClocks({{"store", absl::Milliseconds(1100), doubt}}).is_apart);
  EXPECT_FALSE(CompareClocks({{"store", absl::Milliseconds(1099), doubt}}).is_apart);
  const ClockVerdict behind = CompareClocks({{"store", -absl::Milliseconds(1100), doubt}});
  EXPECT_TRUE(behind.is_apart);
  EXPECT_EQ(behind.text, "this machine is 1.100 s ahead of store (give or take 0.100 s)");
}

TEST(ClockReading, TwoServersAreComparedWithEachOther) {
  const ClockVerdict verdict = CompareClocks(
      {{"store", absl::Milliseconds(700), {}}, {"worker", -absl::Milliseconds(700), {}}});
  EXPECT_TRUE(verdict.is_apart);
  EXPECT_THAT(verdict.text, HasSubstr("store is 1.400 s ahead of worker"));
}

}  // namespace
}  // namespace hearth
