#include "worker/engine/draft/draft_length.h"

#include <algorithm>
#include <cassert>

namespace hearth {

DraftLength::DraftLength(uint32_t most) : most_(most), tokens_(std::min(most, kFirst)) {
  assert(most <= kMost);
}

void DraftLength::OnStep(uint32_t drafted, uint32_t accepted) {
  assert(accepted <= drafted && drafted <= most_);
  if (drafted == 0) {
    if (rest_ > 0) --rest_;
    return;
  }
  if (accepted > 0) next_rest_ = kShortestRest;
  if (accepted == drafted) {
    tokens_ = std::max(tokens_, std::min(most_, 2 * drafted + 1));
  } else if (accepted > 0) {
    tokens_ = std::max(accepted + 1, drafted / 2);
  } else if (tokens_ > 1) {
    tokens_ /= 2;
  } else {
    rest_ = next_rest_;
    next_rest_ = std::min(2 * next_rest_, kLongestRest);
  }
}

}  // namespace hearth
