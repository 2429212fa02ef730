// DamageConfirmation: whether a start reads again what it read wrong.
//
// A start erases, mends or sets aside what it takes for damage, and a disk that reads wrong for a
// moment reads right soon. So it reads again, past the page cache and after ever longer pauses.
// What reads wrong in the same way three times in a row is damage. One thread at a time.
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
  // `dir`: the data folder. `wait`: null: it sleeps. `warnings`: for the first wait; may be null.
  DamageConfirmation(std::string dir, Wait wait, std::shared_ptr<Warnings> warnings)
      : dir_(std::move(dir)), wait_(std::move(wait)), warnings_(std::move(warnings)) {}
  // Each thing that is read has one of its own.
  DamageConfirmation(DamageConfirmation&&) = default;

  // `wrong` describes what was read, and is not empty. Waits, if it is to be read again.
  bool ReadAgain(absl::string_view wrong);
  // The same where two reads differed, or a read failed: that is no damage, however often.
  bool ReadAgainAfterMisread(absl::string_view what);
  // After ReadAgain returned false. False: it reads differently each time.
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

// Has the page cache forget the files of the database at `path`.
void DropCachedFiles(const std::string& path);

// The error of a start that gives up nothing, since `wrong` was not confirmed.
absl::Status ReadsDifferently(const std::string& dir, absl::string_view wrong);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DAMAGE_CONFIRMATION_H_
