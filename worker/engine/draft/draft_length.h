// DraftLength: how many tokens of a sequence are worth guessing, by how many guesses were right.
//
// A guess that is right to its end lets the next be twice as long; one that is not lets it reach a
// token further than it was right, or half as far as it went. Where nothing was right any more
// there is none for a while, which gets longer each time: a text without repetition costs a row now
// and then.
//
// Thread safety: none.
#ifndef HEARTH_WORKER_ENGINE_DRAFT_DRAFT_LENGTH_H_
#define HEARTH_WORKER_ENGINE_DRAFT_DRAFT_LENGTH_H_

#include <cstdint>

namespace hearth {

class DraftLength {
 public:
  static constexpr uint32_t kMost = 15, kFirst = 3;  // tokens
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

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_DRAFT_DRAFT_LENGTH_H_
