// Speculation: the tokens that a sequence expects itself to decode next, for a step to compute
// beside the one that is due.
//
// Thread safety: none.
// Invariant: step() begins with the text's last token.
#ifndef HEARTH_WORKER_ENGINE_SPECULATION_H_
#define HEARTH_WORKER_ENGINE_SPECULATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/engine/request/engine_options.h"

namespace hearth {

// DraftLength: how many tokens of a sequence are worth guessing, by how many guesses were right.
//
// A guess that is right to its end lets the next be twice as long; one that is not lets it reach a
// token further than it was right, or half as far as it went. Where nothing was right any more
// there is none for a while, which gets longer each time: a text without repetition costs a row now
// and then.
//
// Thread safety: none.
class DraftLength {
 public:
  static constexpr uint32_t kMost = kMostSpeculate, kFirst = 3;  // tokens
  // Steps without a guess.
  static constexpr uint32_t kShortestRest = 2, kLongestRest = 64;

  // `most`: tokens of a guess, up to kMost; 0: there is never one.
  explicit DraftLength(uint32_t most);

  // Of the next guess; 0 while it rests.
  uint32_t tokens() const { return rest_ > 0 ? 0 : tokens_; }
  uint32_t most() const { return most_; }
  // A step had `drafted` guessed tokens, of which the first `accepted` were right.
  void OnStep(uint32_t drafted, uint32_t accepted);

 private:
  const uint32_t most_;
  uint32_t tokens_;
  uint32_t rest_ = 0, next_rest_ = kShortestRest;
};

// At most `most` tokens that may come next in a text: those that followed when its last tokens
// stood there before; none where its last pair of tokens is new. Of up to kMostPlaces places with
// that pair, the one counts where most of the last tokens agree; of equal places the latest. A
// guess that reaches the text's end goes on with its own beginning, as a text does that repeats
// itself.
inline constexpr size_t kMostPlaces = 64;
std::vector<int32_t> GuessNext(absl::Span<const int32_t> text, size_t most);

class Speculation {
 public:
  // `most`: tokens to expect at a time; 0: it is off.
  explicit Speculation(uint32_t most) : length_(most) {}

  bool is_on() const { return length_.most() > 0; }

  // The text goes on: with the prompt, then with what was decoded.
  void Append(absl::Span<const int32_t> tokens) {
    text_.insert(text_.end(), tokens.begin(), tokens.end());
  }
  size_t tokens() const { return text_.size(); }
  // Looks for what comes behind the text, at most `room` tokens. REQUIRES: there is a text.
  void Guess(uint32_t room);
  // How many were found.
  uint32_t drafted() const { return step_.empty() ? 0 : static_cast<uint32_t>(step_.size()) - 1; }
  // The text's last token and the tokens expected behind it. REQUIRES: drafted() > 0.
  absl::Span<const int32_t> step() const { return step_; }
  // Of `drafted` expected tokens that a step computed the first `accepted` were decoded.
  void OnStep(uint32_t drafted, uint32_t accepted);

 private:
  std::vector<int32_t> text_;
  DraftLength length_;
  std::vector<int32_t> step_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SPECULATION_H_
