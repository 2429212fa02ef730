// DamageConfirmation: decides whether a start repeats a read that gave wrong bytes.
//
// A start erases, repairs or sets aside damaged data, but a disk that misreads briefly soon reads
// correctly. So the start repeats the read without the page cache, after increasing pauses. If
// three consecutive reads are wrong in the same way, the data is damaged. For one thread.
#ifndef HEARTH_CACHE_STORE_DISK_DAMAGE_CONFIRMATION_H_
#define HEARTH_CACHE_STORE_DISK_DAMAGE_CONFIRMATION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache_store/base/warnings.h"

namespace hearth {

class DamageConfirmation {
 public:
  using Wait = std::function<void(absl::Duration)>;
  // `dir`: the data folder. `wait`: null sleeps. `warnings`: reports the first wait; may be null.
  DamageConfirmation(std::string dir, Wait wait, std::shared_ptr<Warnings> warnings)
      : dir_(std::move(dir)), wait_(std::move(wait)), warnings_(std::move(warnings)) {}
  // Use one object for each item that is read.
  DamageConfirmation(DamageConfirmation&&) = default;

  // Returns whether to read again, after a pause. `wrong` describes the wrong result and is not
  // empty.
  bool ReadAgain(absl::string_view wrong);
  // Like ReadAgain, if two reads differed or a read failed: that never confirms damage.
  bool ReadAgainAfterMisread(absl::string_view what);
  // Call after ReadAgain returned false. False: each read gives another result.
  bool confirmed() const { return same_ >= kSame; }
  const std::string& dir() const { return dir_; }

 private:
  static constexpr int kSame = 3;

  bool Pause(absl::string_view wrong);

  const std::string dir_;
  const Wait wait_;
  const std::shared_ptr<Warnings> warnings_;
  std::string last_;
  int same_ = 0;
  size_t waits_ = 0;
};

// Drops the files of the database at `path` from the page cache.
void DropCachedFiles(const std::string& path);

// Returns the error of a start that deletes nothing because `wrong` was not confirmed.
absl::Status ReadsDifferently(const std::string& dir, absl::string_view wrong);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DAMAGE_CONFIRMATION_H_
