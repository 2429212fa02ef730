// ProgressLine: says on a terminal, in one line that is written over, how far a prompt is.
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

  // Whether anybody sees it: progress is to be asked for.
  bool is_seen() const { return console_.progress; }
  // So many of the prompt's tokens are there, restored or computed.
  void Show(uint32_t ready_tokens, uint32_t prompt_tokens, absl::Time now = absl::Now());
  // Takes the line away, before anything else is written.
  void Clear();

 private:
  // ", about 12 s left"; empty until it can be told.
  std::string TimeLeft(uint32_t ready_tokens, uint32_t prompt_tokens, absl::Time now) const;

  Console& console_;
  bool shown_ = false;
  uint32_t first_ready_ = 0;  // when the line was shown first:
  absl::Time first_at_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_PROGRESS_LINE_H_
