// Speculation: guesses the next tokens of a sequence, so that one step can verify several of them.
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

// DraftLength: adapts the number of tokens to guess to the success of earlier guesses.
//
// If all guessed tokens were right, the next guess may be twice as long plus one. If some were
// right, the next guess has one token more than were right, or half of this guess, whichever is
// longer. If none were right, the length is halved; at length 1 guessing pauses, longer each time.
// So a text without repetition costs one row now and then.
//
// Thread safety: none.
class DraftLength {
 public:
  static constexpr uint32_t kMost = kMostSpeculate, kFirst = 3;  // tokens
  // Pause, in steps without a guess.
  static constexpr uint32_t kShortestRest = 2, kLongestRest = 64;

  // `most`: maximum tokens of a guess, up to kMost; 0 disables guessing.
  explicit DraftLength(uint32_t most);

  // Length of the next guess; 0 during a pause.
  uint32_t tokens() const { return rest_ > 0 ? 0 : tokens_; }
  uint32_t most() const { return most_; }
  // Records a step with `drafted` guessed tokens, of which the first `accepted` were right.
  void OnStep(uint32_t drafted, uint32_t accepted);

 private:
  const uint32_t most_;
  uint32_t tokens_;
  uint32_t rest_ = 0, next_rest_ = kShortestRest;
};

// Guesses up to `most` next tokens: the tokens that followed an earlier occurrence of the text's
// last tokens. Returns none if the last pair of tokens did not occur before. Searches up to
// kMostPlaces occurrences of that pair, takes the one with the longest matching context, and the
// latest of equal ones. A guess that reaches the text's end continues with its own beginning, as
// repeating text does.
inline constexpr size_t kMostPlaces = 64;
std::vector<int32_t> GuessNext(absl::Span<const int32_t> text, size_t most);

class Speculation {
 public:
  // `most`: maximum tokens to guess; 0 disables guessing.
  explicit Speculation(uint32_t most) : length_(most) {}

  bool is_on() const { return length_.most() > 0; }

  // Appends to the text: first the prompt, then the decoded tokens.
  void Append(absl::Span<const int32_t> tokens) {
    text_.insert(text_.end(), tokens.begin(), tokens.end());
  }
  size_t tokens() const { return text_.size(); }
  // Guesses at most `room` tokens after the text. REQUIRES: the text is not empty.
  void Guess(uint32_t room);
  // Number of guessed tokens.
  uint32_t drafted() const { return step_.empty() ? 0 : static_cast<uint32_t>(step_.size()) - 1; }
  // The text's last token and the guessed tokens. REQUIRES: drafted() > 0.
  absl::Span<const int32_t> step() const { return step_; }
  // Records a step with `drafted` guessed tokens, of which the first `accepted` were right.
  void OnStep(uint32_t drafted, uint32_t accepted);

 private:
  std::vector<int32_t> text_;
  DraftLength length_;
  std::vector<int32_t> step_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SPECULATION_H_
