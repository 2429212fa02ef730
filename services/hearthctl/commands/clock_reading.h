// ClockReading: what a server's clock shows compared with ours, as exactly as one call can tell.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_COMMANDS_CLOCK_READING_H_
#define HEARTH_SERVICES_HEARTHCTL_COMMANDS_CLOCK_READING_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace hearth {

// From here on clocks are said to be apart.
inline constexpr absl::Duration kClocksApart = absl::Seconds(1);

struct ClockReading {
  std::string who;
  absl::Duration ahead;  // of ours; below 0: behind it
  absl::Duration doubt;  // as much more or less
};

// The server looked at its clock at `server`, some time between `began` and `ended` by ours.
ClockReading ReadClock(const std::string& who, absl::Time server, absl::Time began,
                       absl::Time ended);

struct ClockVerdict {
  bool is_apart = false;  // two of them, beyond doubt
  std::string text;
};
// Compares them with each other and with ours.
ClockVerdict CompareClocks(const std::vector<ClockReading>& readings);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_COMMANDS_CLOCK_READING_H_
