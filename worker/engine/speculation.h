// Speculation: guesses the next tokens of a sequence from its own text, so that one step can verify
// several tokens.
//
// Thread safety: none.
// Invariant: step() begins with the last token of the text.
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
// If all guessed tokens were right, the next guess may have twice as many tokens plus one. If n > 0
// tokens were right, it has n + 1 tokens or half as many as this guess, whichever is more. If no
// token was right, the length is halved; if the length was 1, guessing pauses, each time longer. So
// a text without repetitions costs only one extra row now and then.
//
// Thread safety: none.
class DraftLength {
 public:
  // Numbers of tokens: limit, and first guess.
  static constexpr uint32_t kMost = kMostSpeculate, kFirst = 3;
  // Shortest and longest pause, in decode steps.
  static constexpr uint32_t kShortestRest = 2, kLongestRest = 64;

  // `most`: maximum tokens of a guess, up to kMost; 0 disables guessing.
  explicit DraftLength(uint32_t most);

  // Number of tokens to guess next; 0 during a pause.
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
// last tokens. Returns no token if the last two tokens did not occur together before. Searches up
// to kMostPlaces occurrences of this pair, and uses the occurrence whose preceding tokens match
// longest; of several, the latest. A guess that reaches the end of the text continues with its own
// first tokens, as repeating text does.
inline constexpr size_t kMostPlaces = 64;
std::vector<int32_t> GuessNext(absl::Span<const int32_t> text, size_t most);

class Speculation {
 public:
  // `most`: maximum tokens to guess; 0 disables guessing.
  explicit Speculation(uint32_t most) : length_(most) {}

  bool is_on() const { return length_.most() > 0; }

  // Appends tokens to the text: first the prompt, later the decoded tokens.
  void Append(absl::Span<const int32_t> tokens) {
    text_.insert(text_.end(), tokens.begin(), tokens.end());
  }
  size_t tokens() const { return text_.size(); }
  // Guesses at most `room` tokens that follow the text. REQUIRES: the text is not empty.
  void Guess(uint32_t room);
  // Guesses `tokens`, which the answer's grammar forces, or nearly so. OnStep does not adapt the
  // length of guesses to them. REQUIRES: the text is not empty; 1 <= tokens.size() <= most().
  void Expect(absl::Span<const int32_t> tokens);
  // Keeps only the first `tokens` guessed tokens.
  void Cut(size_t tokens);
  // Whether the current guess comes from Expect.
  bool is_forced() const { return forced_ && !step_.empty(); }
  uint32_t most() const { return length_.most(); }
  // Number of guessed tokens.
  uint32_t drafted() const { return step_.empty() ? 0 : static_cast<uint32_t>(step_.size()) - 1; }
  // Returns the last token of the text, followed by the guessed tokens. REQUIRES: drafted() > 0.
  absl::Span<const int32_t> step() const { return step_; }
  // Records a step with `drafted` guessed tokens, of which the first `accepted` were right.
  void OnStep(uint32_t drafted, uint32_t accepted);

 private:
  std::vector<int32_t> text_;
  DraftLength length_;
  std::vector<int32_t> step_;
  bool forced_ = false;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SPECULATION_H_
