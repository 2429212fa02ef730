#include <gtest/gtest.h>

#include <string>

#include "services/serving/logging.h"
#include "services/serving/reachability.h"

namespace hearth {
namespace {

TEST(LogRate, BurstThenOnePerInterval) {
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

TEST(Reachability, LastChangeIsAlwaysLogged) {
  SetUpLogging(LogLevel::kInfo, LogFormat::kText);
  Reachability store("store", "a:1", absl::Milliseconds(10));
  std::string said;
  const auto note = [&](bool is_reached) {
    testing::internal::CaptureStderr();
    store.Note(is_reached, "");
    const std::string line = testing::internal::GetCapturedStderr();
    if (!line.empty()) said = line;
  };
  for (int i = 0; i < 100; ++i) note(i % 2 == 0);
  note(true);
  note(false);
  while (said.find("store unreachable") == std::string::npos) note(false);
}

}  // namespace
}  // namespace hearth
