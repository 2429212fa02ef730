// Console: the streams that a command reads and writes, and its exit codes.
//
// Exit codes: 0 done; 1 the request failed (one line on `err`: what, where, what to do); 2 the
// command line or a value in it was wrong (diff: or a file cannot be compared).
// Thread safety: none. Ownership: borrows the streams.
#ifndef HEARTH_SERVICES_HEARTHCTL_CONSOLE_H_
#define HEARTH_SERVICES_HEARTHCTL_CONSOLE_H_

#include <iostream>
#include <string>

#include "absl/status/status.h"

namespace hearth {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;  // a person types at `in` and reads `out`
  bool color = false;     // `out` takes escape sequences
  bool progress = false;  // `err` takes them, and a person reads it
};

// The same error, with `subject` in front of its message.
absl::Status About(const std::string& subject, const absl::Status& status);

// Prints one line and returns the exit code, which of kInvalidArgument is kExitUsage.
int Fail(Console& console, const absl::Status& status);
int FailUsage(Console& console, const std::string& message);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CONSOLE_H_
