#include "cache_store/store/background/scrub.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {

std::string ScrubProgress::Serialize() const {
  return absl::StrCat("1 ", next_object, " ", started_unix_s, " ", finished_unix_s);
}

ScrubProgress ScrubProgress::Parse(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ' ');
  ScrubProgress progress;
  if (fields.size() == 4 && fields[0] == "1" &&
      absl::SimpleAtoi(fields[1], &progress.next_object) &&
      absl::SimpleAtoi(fields[2], &progress.started_unix_s) &&
      absl::SimpleAtoi(fields[3], &progress.finished_unix_s)) {
    return progress;
  }
  return {};
}

absl::Duration ScrubPause(uint64_t bytes, uint64_t rate, bool disk_in_use) {
  return absl::Seconds(static_cast<double>(bytes) * (disk_in_use ? kScrubYield : 1) /
                       static_cast<double>(rate));
}

}  // namespace hearth
