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

namespace {

constexpr size_t kMostAgreeing = 16;  // longer matches do not improve guesses
constexpr size_t kBlock = 64;         // positions that one vectorized loop compares

// Returns how many tokens, ending at position `place`, equal the last tokens of the text; at most
// kMostAgreeing.
size_t AgreeingAt(absl::Span<const int32_t> text, size_t place) {
  size_t agreeing = 0;
  while (agreeing < kMostAgreeing && agreeing <= place &&
         text[place - agreeing] == text[text.size() - 1 - agreeing]) {
    ++agreeing;
  }
  return agreeing;
}

// Returns whether the last two tokens of the text also end at one of the kBlock positions from
// `begin`. The loop has a fixed length and no branch, so that the compiler vectorizes it.
// REQUIRES: begin > 0; the block ends before the last token of the text.
bool HasLastPair(absl::Span<const int32_t> text, size_t begin) {
  const int32_t first = text[text.size() - 2], second = text[text.size() - 1];
  const int32_t* const tokens = text.data() + begin - 1;
  int found = 0;
  for (size_t i = 0; i < kBlock; ++i) found |= (tokens[i] == first) & (tokens[i + 1] == second);
  return found != 0;
}

// Returns the position of the best match; the guess begins after it. Returns 0 if there is no
// match.
size_t BestPlace(absl::Span<const int32_t> text) {
  size_t best = 0, best_agreeing = 1;  // so a match needs at least two tokens
  size_t seen = 0;
  size_t end = text.empty() ? 0 : text.size() - 1;  // all positions from `end` on are searched
  while (end > 1) {
    const size_t begin = end > kBlock ? end - kBlock : 1;
    const bool skips = end - begin == kBlock && !HasLastPair(text, begin);
    for (size_t place = skips ? begin : end; place > begin;) {
      const size_t agreeing = AgreeingAt(text, --place);
      if (agreeing < 2) continue;
      if (agreeing > best_agreeing) {
        best = place;
        best_agreeing = agreeing;
      }
      if (best_agreeing == kMostAgreeing || ++seen == kMostPlaces) return best;
    }
    end = begin;
  }
  return best;
}

}  // namespace

std::vector<int32_t> GuessNext(absl::Span<const int32_t> text, size_t most) {
  std::vector<int32_t> guess;
  const size_t best = BestPlace(text);
  if (best == 0) return guess;
  assert(best + 1 < text.size());  // a match ends before the last token
  for (size_t at = best + 1; guess.size() < most; ++at) {
    guess.push_back(at < text.size() ? text[at] : guess[at - text.size()]);
  }
  return guess;
}

void Speculation::Guess(uint32_t room) {
  step_.clear();
  forced_ = false;
  const uint32_t most = std::min(room, length_.tokens());
  if (most == 0) return;
  const std::vector<int32_t> guess = GuessNext(text_, most);
  if (guess.empty()) return;
  assert(guess.size() <= most);
  step_.push_back(text_.back());
  step_.insert(step_.end(), guess.begin(), guess.end());
}

void Speculation::Expect(absl::Span<const int32_t> tokens) {
  assert(!tokens.empty() && tokens.size() <= most());
  step_.assign(1, text_.back());
  step_.insert(step_.end(), tokens.begin(), tokens.end());
  forced_ = true;
}

void Speculation::Cut(size_t tokens) {
  if (tokens == 0) return step_.clear();
  step_.resize(std::min(step_.size(), tokens + 1));
}

void Speculation::OnStep(uint32_t drafted, uint32_t accepted) {
  assert(drafted <= this->drafted());
  if (is_forced()) return;
  length_.OnStep(drafted, accepted);
}

}  // namespace hearth
