#include "services/hearthctl/console.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// The code's name in front, as the APIs document it; one line whatever the message holds.
std::string OneLine(const absl::Status& status) {
  std::string line = absl::StatusCodeToString(status.code());
  line += ": ";
  line += std::string(status.message());
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace

absl::Status About(const std::string& subject, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(subject, ": ", status.message()));
}

int Fail(Console& console, const absl::Status& status) {
  console.out.flush();
  console.err << "hearthctl: " << OneLine(status) << std::endl;
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

int FailUsage(Console& console, const std::string& message) {
  console.err << "hearthctl: " << message << " (--help shows examples)" << std::endl;
  return kExitUsage;
}

}  // namespace hearth
