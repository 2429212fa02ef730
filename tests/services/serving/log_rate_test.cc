#include "services/serving/log_rate.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

TEST(LogRate, AFewAtOnceThenOneNowAndThenAndNoneIsForgotten) {
  LogRate rate(absl::Seconds(10), 3);
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rate.Take(now), uint64_t{0});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rate.Take(now), std::nullopt);
  now += absl::Seconds(10);
  EXPECT_EQ(rate.Take(now), uint64_t{100});
  EXPECT_EQ(rate.Take(now), std::nullopt);
  now += absl::Hours(1);
  EXPECT_EQ(rate.Take(now), uint64_t{1});
  EXPECT_EQ(rate.Take(now), uint64_t{0});
}

}  // namespace
}  // namespace hearth
