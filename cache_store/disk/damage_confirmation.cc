#include "cache_store/disk/damage_confirmation.h"

#include <cassert>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/base/regular_file.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {
namespace {

// Pauses before repeated reads, together 31 s. Not longer than a store may take to accept publishes
// after its disk recovers.
constexpr int kPausesInSeconds[] = {1, 2, 4, 4, 4, 4, 4, 4, 4};
constexpr size_t kQuotedBytes = 512;  // limit of the error text that a warning quotes

}  // namespace

// Skips the file LOCK: closing it would release a lock that this process holds.
void DropCachedFiles(const std::string& path) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename() != "LOCK") DropFromPageCache(it->path().string());
  }
}

bool DamageConfirmation::ReadAgain(absl::string_view wrong) {
  same_ = wrong == last_ ? same_ + 1 : 1;
  last_ = std::string(wrong);
  return !confirmed() && Pause(wrong);
}

bool DamageConfirmation::ReadAgainAfterMisread(absl::string_view what) {
  same_ = 0;
  last_.clear();
  return Pause(what);
}

// Waits for the next pause. Returns false if all pauses are used up.
bool DamageConfirmation::Pause(absl::string_view wrong) {
  assert(!confirmed() && waits_ <= std::size(kPausesInSeconds));
  if (waits_ == std::size(kPausesInSeconds)) return false;
  const absl::Duration pause = absl::Seconds(kPausesInSeconds[waits_++]);
  if (waits_ == 1 && warnings_ != nullptr) {
    warnings_->Say(
        "damage", absl::StrCat("data folder ", dir_, ": a read gave wrong bytes; reading again in ",
                               absl::FormatDuration(pause), ": ", wrong.substr(0, kQuotedBytes)));
  }
  wait_ ? wait_(pause) : absl::SleepFor(pause);
  DropCachedFiles(DatabasePath(dir_));
  return true;
}

absl::Status ReadsDifferently(const std::string& dir, absl::string_view wrong) {
  return absl::UnavailableError(
      absl::StrCat("data folder ", dir, kReadsDifferently,
                   "; nothing was deleted; check the disk, then start again: ", wrong));
}

}  // namespace hearth
