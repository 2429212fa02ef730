// NgramDraft: guesses the next tokens of a text from the text itself: what followed when its last
// tokens stood there before.
//
// Each token is linked to the latest one before it that ends an equal pair, by a hash of the pair.
// A guess goes back along these links, at most kMostPlaces, to the place where the most of the last
// tokens agree; of places that agree alike the latest counts.
//
// Thread safety: none. Memory: 128 KiB and 8 bytes a token, from the first token on.
#ifndef HEARTH_WORKER_ENGINE_DRAFT_NGRAM_DRAFT_H_
#define HEARTH_WORKER_ENGINE_DRAFT_NGRAM_DRAFT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace hearth {

class NgramDraft {
 public:
  // More tokens that agree say no more.
  static constexpr size_t kMostAgreeing = 16;
  static constexpr size_t kMostPlaces = 64;

  // The text goes on.
  void Append(absl::Span<const int32_t> tokens);
  size_t tokens() const { return tokens_.size(); }
  int32_t last() const { return tokens_.back(); }  // REQUIRES: tokens() > 0

  // At most `most` tokens that may come next; none where the last pair of tokens is new. A guess
  // that reaches the text's end goes on with its own beginning, as a text does that repeats itself.
  std::vector<int32_t> Guess(size_t most) const;

 private:
  static constexpr size_t kPairs = size_t{1} << 15;  // hashes
  static size_t PairHash(int32_t first, int32_t second);
  size_t AgreeingAt(size_t place) const;
  size_t BestPlace() const;

  std::vector<int32_t> tokens_;
  std::vector<uint32_t> latest_;  // by a pair's hash: where one ends; 0: nowhere
  std::vector<uint32_t> before_;  // of each token: the place before it with its pair's hash
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_DRAFT_NGRAM_DRAFT_H_
