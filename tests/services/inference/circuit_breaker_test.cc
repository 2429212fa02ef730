#include <gtest/gtest.h>

#include "services/inference/store_stream.h"

namespace hearth {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(CircuitBreaker, IsClosedAtFirst) { EXPECT_TRUE(CircuitBreaker().Allows(kStart)); }

TEST(CircuitBreaker, SilenceOpensForOneSecond) {
  CircuitBreaker breaker;
  breaker.OnSilence(kStart);
  EXPECT_FALSE(breaker.Allows(kStart));
  EXPECT_FALSE(breaker.Allows(kStart + absl::Milliseconds(999)));
  EXPECT_TRUE(breaker.Allows(kStart + absl::Seconds(1)));
}

TEST(CircuitBreaker, CooldownDoublesUpToEightSeconds) {
  CircuitBreaker breaker;
  absl::Time now = kStart;
  for (int seconds : {1, 2, 4, 8, 8}) {
    breaker.OnSilence(now);
    EXPECT_FALSE(breaker.Allows(now + absl::Seconds(seconds) - absl::Milliseconds(1)));
    now += absl::Seconds(seconds);
    EXPECT_TRUE(breaker.Allows(now)) << seconds;
  }
}

TEST(CircuitBreaker, OneAnswerClosesBreaker) {
  CircuitBreaker breaker;
  breaker.OnSilence(kStart);
  breaker.OnAnswer();
  EXPECT_TRUE(breaker.Allows(kStart));
  breaker.OnSilence(kStart);
  EXPECT_TRUE(breaker.Allows(kStart + absl::Seconds(1))) << "the first cooldown again";
}

TEST(CircuitBreaker, ConcurrentFailuresCountOnce) {
  CircuitBreaker breaker;
  for (int i = 0; i < 10; ++i) breaker.OnSilence(kStart);
  EXPECT_TRUE(breaker.Allows(kStart + absl::Seconds(1)));
}

}  // namespace
}  // namespace hearth
