// PairMerger: byte-pair encoding of a stretch of text that holds no piece that is never merged.
//
// Neighbours become pieces, the best score first, and of equal scores the leftmost, as in
// SentencePiece and transformers. A heap holds the pairs of neighbours that a piece joins.
// Thread safety: one thread. Ownership: the vocabulary must outlive it.
#ifndef HEARTH_WORKER_TEXT_PAIR_MERGER_H_
#define HEARTH_WORKER_TEXT_PAIR_MERGER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "worker/text/vocabulary.h"

namespace hearth {

class PairMerger {
 public:
  explicit PairMerger(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Appends the ids of `text` to `ids`. If `may_go_on`, called in each step, returns false, returns
  // false and appends none. Takes at most 48 bytes of memory for each character of the longest
  // text. REQUIRES: well-formed UTF-8 of less than 4 GiB, spaces as spaces.
  bool Merge(std::string_view text, absl::FunctionRef<bool()> may_go_on, std::vector<int32_t>* ids);

 private:
  // A part of the text; without bytes once it was joined to the part before.
  struct Part {
    uint32_t begin, bytes;
    uint32_t previous, next;
  };
  // Two neighbours that a piece joins. Stale if either has changed since.
  struct Pair {
    float score;
    uint32_t left, right;
    uint32_t bytes;                            // of the piece
    bool operator<(const Pair& other) const {  // the best pair is the greatest
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  bool AddPair(std::string_view text, uint32_t left, uint32_t right);

  const Vocabulary& vocabulary_;
  std::vector<Part> parts_;  // kept from text to text for their memory
  std::vector<Pair> pairs_;  // a heap
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PAIR_MERGER_H_
