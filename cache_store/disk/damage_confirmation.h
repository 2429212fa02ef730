// DamageConfirmation: decides whether a starting store repeats a read that gave wrong bytes.
//
// A start erases, repairs or moves damaged data. But a disk may misread for a short time and then
// read correctly. So the start repeats the read, bypassing the page cache, after increasing pauses.
// If three reads in a row give the same wrong result, the data on disk is damaged. For use by one
// thread.
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
  // `dir`: the data folder. `wait`: waits for a pause; null: sleeps. `warnings`: receives a line
  // about the first pause; may be null.
  DamageConfirmation(std::string dir, Wait wait, std::shared_ptr<Warnings> warnings)
      : dir_(std::move(dir)), wait_(std::move(wait)), warnings_(std::move(warnings)) {}
  // Movable. Use a new object for each item that is read, because an object counts the reads of one
  // item.
  DamageConfirmation(DamageConfirmation&&) = default;

  // Pauses, and returns whether to repeat the read. `wrong` describes the wrong result of the last
  // read; not empty.
  bool ReadAgain(absl::string_view wrong);
  // Pauses, and returns whether to repeat the read. For a read error, or for two reads that
  // differed: these never confirm damage.
  bool ReadAgainAfterMisread(absl::string_view what);
  // Returns whether the damage is confirmed; false: each read gave another result. Call after
  // ReadAgain returned false.
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

// Drops the database files in folder `path` from the page cache, so that the next reads read the
// disk.
void DropCachedFiles(const std::string& path);

// Returns the error of a start that stops without deleting anything, because reads of the data
// differ and damage is not confirmed.
absl::Status ReadsDifferently(const std::string& dir, absl::string_view wrong);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DAMAGE_CONFIRMATION_H_
