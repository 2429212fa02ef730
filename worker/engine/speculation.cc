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

size_t NgramDraft::PairHash(int32_t first, int32_t second) {
  const uint64_t pair =
      uint64_t{static_cast<uint32_t>(first)} << 32 | static_cast<uint32_t>(second);
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15U) >> 32) % kPairs;
}

void NgramDraft::Append(absl::Span<const int32_t> tokens) {
  if (latest_.empty()) latest_.resize(kPairs);
  for (const int32_t token : tokens) {
    uint32_t before = 0;
    if (!tokens_.empty()) {
      uint32_t& latest = latest_[PairHash(tokens_.back(), token)];
      before = latest;
      latest = static_cast<uint32_t>(tokens_.size());
    }
    before_.push_back(before);
    tokens_.push_back(token);
  }
}

// How many tokens up to `place` are the text's last ones.
size_t NgramDraft::AgreeingAt(size_t place) const {
  size_t agreeing = 0;
  const size_t last = tokens_.size() - 1;
  while (agreeing < kMostAgreeing && agreeing <= place &&
         tokens_[place - agreeing] == tokens_[last - agreeing]) {
    ++agreeing;
  }
  return agreeing;
}

// 0: there is none.
size_t NgramDraft::BestPlace() const {
  if (tokens_.empty()) return 0;
  size_t best = 0, most = 1;  // a single token says too little
  size_t place = before_.back();
  for (size_t seen = 0; place > 0 && seen < kMostPlaces && most < kMostAgreeing; ++seen) {
    if (const size_t agreeing = AgreeingAt(place); agreeing > most) {
      most = agreeing;
      best = place;
    }
    place = before_[place];
  }
  return best;
}

std::vector<int32_t> NgramDraft::Guess(size_t most) const {
  std::vector<int32_t> guess;
  const size_t place = BestPlace();
  if (place == 0) return guess;
  for (size_t at = place + 1; guess.size() < most; ++at) {
    guess.push_back(at < tokens_.size() ? tokens_[at] : guess[at - tokens_.size()]);
  }
  return guess;
}

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
