#include "cache_store/disk/damage_confirmation.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <system_error>

#include "absl/time/clock.h"
#include "cache_store/disk/disk_tier_db.h"

namespace hearth {
namespace {

constexpr absl::Duration kPauses[] = {absl::Seconds(1), absl::Seconds(2), absl::Seconds(4),
                                      absl::Seconds(8), absl::Seconds(16)};

// Dirty pages stay. LOCK is left out: to close it would end this process's lock of it.
void DropCachedFiles(const std::string& path) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename() == "LOCK") continue;
    const int file = ::open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

}  // namespace

bool DamageConfirmation::ReadAgain(absl::string_view wrong) {
  same_ = wrong == last_ ? same_ + 1 : 1;
  last_ = std::string(wrong);
  if (confirmed() || waits_ == std::size(kPauses)) return false;
  const absl::Duration pause = kPauses[waits_++];
  wait_ ? wait_(pause) : absl::SleepFor(pause);
  DropCachedFiles(DatabasePath(dir_));
  return true;
}

}  // namespace hearth
