// ProgressLine: shows on a terminal how much of a prompt is computed, in one line that it
// overwrites.
//
// Thread safety: none. Ownership: borrows the console.
#ifndef HEARTH_SERVICES_HEARTHCTL_PROGRESS_LINE_H_
#define HEARTH_SERVICES_HEARTHCTL_PROGRESS_LINE_H_

#include <cstdint>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/cli/console.h"

namespace hearth {

class ProgressLine {
 public:
  explicit ProgressLine(Console* console) : console_(*console) {}
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Returns whether the line is visible. If it is not, do not request progress messages.
  bool is_seen() const { return console_.progress; }
  // Shows that `ready_tokens` of the prompt's tokens are restored or computed.
  void Show(uint32_t ready_tokens, uint32_t prompt_tokens, absl::Time now = absl::Now());
  // Removes the line. Call this before printing anything else.
  void Clear();

 private:
  // Returns the estimated remaining time, such as ", about 12 s left"; "" if there is no estimate
  // yet.
  std::string TimeLeft(uint32_t ready_tokens, uint32_t prompt_tokens, absl::Time now) const;

  Console& console_;
  bool shown_ = false;
  uint32_t first_ready_ = 0;  // number of ready tokens at the first call of Show
  absl::Time first_at_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_PROGRESS_LINE_H_
