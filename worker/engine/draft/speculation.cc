#include "worker/engine/draft/speculation.h"

#include <algorithm>
#include <cassert>

namespace hearth {

void Speculation::Guess(uint32_t room) {
  step_.clear();
  const uint32_t most = std::min(room, length_.tokens());
  if (most == 0) return;
  const std::vector<int32_t> guess = text_.Guess(most);
  if (guess.empty()) return;
  step_.push_back(text_.last());
  step_.insert(step_.end(), guess.begin(), guess.end());
}

void Speculation::OnStep(uint32_t drafted, uint32_t accepted) {
  assert(drafted <= this->drafted());
  length_.OnStep(drafted, accepted);
}

}  // namespace hearth
