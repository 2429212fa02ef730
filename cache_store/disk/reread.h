// Reread: whether a start reads again what it read wrong.
//
// A start erases, mends or sets aside what it takes for damage, and a disk that reads wrong for a
// moment reads right soon. So it reads again, past the page cache and after ever longer pauses.
// What reads wrong in the same way three times in a row is damage. One thread at a time.
#ifndef HEARTH_CACHE_STORE_DISK_REREAD_H_
#define HEARTH_CACHE_STORE_DISK_REREAD_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace hearth {

class Reread {
 public:
  using Wait = std::function<void(absl::Duration)>;
  // `dir`: the data folder. `wait`: null: it sleeps.
  Reread(std::string dir, Wait wait) : dir_(std::move(dir)), wait_(std::move(wait)) {}

  // `wrong` describes what was read. True: waits, and it is to be read again.
  bool Again(absl::string_view wrong);
  // After Again returned false. False: it read differently each time.
  bool is_damage() const { return same_ >= kSame; }

 private:
  static constexpr int kSame = 3;

  const std::string dir_;
  const Wait wait_;
  std::string last_;
  int same_ = 0;
  size_t waits_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_REREAD_H_
