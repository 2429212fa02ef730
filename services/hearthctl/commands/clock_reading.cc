#include "services/hearthctl/commands/clock_reading.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hearth {
namespace {

std::string SecondsText(absl::Duration time) {
  return absl::StrFormat("%.3f s", absl::ToDoubleSeconds(time));
}

}  // namespace

ClockReading ReadClock(const std::string& who, absl::Time server, absl::Time began,
                       absl::Time ended) {
  const absl::Duration doubt = std::max(ended - began, absl::ZeroDuration()) / 2;
  return {who, server - (began + doubt), doubt};
}

ClockVerdict CompareClocks(const std::vector<ClockReading>& readings) {
  std::vector<ClockReading> all = readings;
  all.push_back({"this machine", absl::ZeroDuration(), absl::ZeroDuration()});
  const auto [behind, ahead] = std::minmax_element(
      all.begin(), all.end(),
      [](const ClockReading& a, const ClockReading& b) { return a.ahead < b.ahead; });
  const absl::Duration apart = ahead->ahead - behind->ahead;
  const absl::Duration doubt = ahead->doubt + behind->doubt;
  const std::string give = absl::StrCat(" (give or take ", SecondsText(doubt), ")");
  if (apart - doubt < kClocksApart) {
    return {false, absl::StrCat("of all differ by ", SecondsText(apart), give)};
  }
  return {true,
          absl::StrCat(ahead->who, " is ", SecondsText(apart), " ahead of ", behind->who, give)};
}

}  // namespace hearth
