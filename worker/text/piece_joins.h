// PieceJoins: knows between which two characters a text may be cut before it becomes tokens, proven
// from the vocabulary.
//
// Byte-pair encoding joins two neighbours only to a piece, and never divides it again. So each
// merge across the border of two characters makes a piece that has them side by side: where no
// piece does, no merge crosses. Merges on one side do not depend on the other (the best score
// first, of equal ones the leftmost: an order that dividing the text keeps on both sides), so both
// sides become the same tokens as alone.
//
// This holds only if nothing but merges happens to a text: `Prove` refuses every vocabulary where
// something else might. Thread safety: const after construction.
#ifndef HEARTH_WORKER_TEXT_PIECE_JOINS_H_
#define HEARTH_WORKER_TEXT_PIECE_JOINS_H_

#include <bitset>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

class PieceJoins {
 public:
  // For texts without a whole user-defined piece and without a run of two spaces or more: those
  // were taken out before. kInvalidArgument: a piece has a space that no text has when pieces are
  // looked up, or a score that is no number. kUnimplemented: a user-defined piece has a space in
  // it, unless it is a run of spaces: it is not taken out. REQUIRES: all are well-formed UTF-8.
  static absl::StatusOr<PieceJoins> Prove(const std::vector<VocabularyPiece>& pieces);

  // Whether a piece has the two side by side; a space is ' '.
  bool MayJoin(char32_t left, char32_t right) const {
    if ((left | right) < kAscii) return ascii_[left * kAscii + right];
    return FindOther(left, right);
  }

 private:
  static constexpr uint32_t kAscii = 128;
  PieceJoins() = default;
  void Note(char32_t left, char32_t right);
  bool FindOther(char32_t left, char32_t right) const;

  std::bitset<kAscii * kAscii> ascii_;
  std::vector<uint64_t> others_;  // a hash table, at most half full; 0 is a free place
  size_t count_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PIECE_JOINS_H_
