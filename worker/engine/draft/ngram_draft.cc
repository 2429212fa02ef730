#include "worker/engine/draft/ngram_draft.h"

#include <algorithm>

namespace hearth {

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

}  // namespace hearth
