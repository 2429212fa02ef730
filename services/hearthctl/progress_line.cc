#include "services/hearthctl/progress_line.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace hearth {

void ProgressLine::Show(uint32_t ready_tokens, uint32_t prompt_tokens, absl::Time now) {
  if (!is_seen() || prompt_tokens == 0) return;
  if (!shown_) {
    first_ready_ = ready_tokens;
    first_at_ = now;
  }
  shown_ = true;
  const uint64_t percent = uint64_t{100} * std::min(ready_tokens, prompt_tokens) / prompt_tokens;
  console_.err << Raw{"\r"} << "computing the prompt: " << ready_tokens << " of " << prompt_tokens
               << " tokens, " << percent << " %" << TimeLeft(ready_tokens, prompt_tokens, now)
               << Raw{"\x1b[K"} << std::flush;
}

std::string ProgressLine::TimeLeft(uint32_t ready_tokens, uint32_t prompt_tokens,
                                   absl::Time now) const {
  if (ready_tokens <= first_ready_ || ready_tokens >= prompt_tokens) return "";
  const double took_s = absl::ToDoubleSeconds(now - first_at_);
  const double left_s =
      took_s * (prompt_tokens - ready_tokens) / static_cast<double>(ready_tokens - first_ready_);
  return absl::StrCat(", about ", std::ceil(left_s), " s left");
}

void ProgressLine::Clear() {
  if (!shown_) return;
  shown_ = false;
  console_.err << Raw{"\r\x1b[K"} << std::flush;
}

}  // namespace hearth
