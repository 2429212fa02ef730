#include "worker/engine/speculation.h"

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

std::vector<int32_t> GuessNext(absl::Span<const int32_t> text, size_t most) {
  // How many tokens up to `place` are the text's last ones; more say no more.
  const auto agreeing_at = [text](size_t place) {
    constexpr size_t kMostAgreeing = 16;
    size_t agreeing = 0;
    while (agreeing < kMostAgreeing && agreeing <= place &&
           text[place - agreeing] == text[text.size() - 1 - agreeing]) {
      ++agreeing;
    }
    return agreeing;
  };
  size_t best = 0, best_agreeing = 1;  // a single token says too little
  for (size_t place = text.empty() ? 0 : text.size() - 1, seen = 0; place-- > 1;) {
    const size_t agreeing = agreeing_at(place);
    if (agreeing > best_agreeing) {
      best = place;
      best_agreeing = agreeing;
    }
    if (agreeing > 1 && ++seen == kMostPlaces) break;
  }
  std::vector<int32_t> guess;
  for (size_t at = best + 1; best > 0 && guess.size() < most; ++at) {
    guess.push_back(at < text.size() ? text[at] : guess[at - text.size()]);
  }
  return guess;
}

void Speculation::Guess(uint32_t room) {
  step_.clear();
  const uint32_t most = std::min(room, length_.tokens());
  if (most == 0) return;
  const std::vector<int32_t> guess = GuessNext(text_, most);
  if (guess.empty()) return;
  step_.push_back(text_.back());
  step_.insert(step_.end(), guess.begin(), guess.end());
}

void Speculation::OnStep(uint32_t drafted, uint32_t accepted) {
  assert(drafted <= this->drafted());
  length_.OnStep(drafted, accepted);
}

}  // namespace hearth
