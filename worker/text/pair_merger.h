// PairMerger: byte-pair encoding of one word of any length, which can be stopped.
//
// SentencePiece encodes its input in one call: a word of megabytes takes seconds, and nobody can
// end it; a short one costs more to hand over than to encode. Here the same merges are made in the
// same order, the best score first and of equal ones the leftmost, and the caller may stop them now
// and then. Only for words without pieces that are never merged: those were removed before.
// Standard library only. Thread safety: const after construction. Ownership: the table must outlive
// it.
#ifndef HEARTH_WORKER_TEXT_PAIR_MERGER_H_
#define HEARTH_WORKER_TEXT_PAIR_MERGER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "worker/text/piece_table.h"

namespace hearth {

class PairMerger {
 public:
  // `byte_ids`: what the bytes of a character without a piece become.
  PairMerger(const PieceTable* pieces, const std::array<int32_t, 256>& byte_ids)
      : pieces_(*pieces), byte_ids_(byte_ids) {}

  // Appends the word's ids; false, and some of them or none, when `stopped` said so. 48 bytes of
  // memory for each character, at most. REQUIRES: well-formed UTF-8 of less than 4 GiB, spaces
  // as spaces.
  bool Encode(std::string_view word, const std::function<bool()>& stopped,
              std::vector<int32_t>* ids) const;

 private:
  struct ShortWord;
  bool EncodeLong(std::string_view word, const std::function<bool()>& stopped,
                  std::vector<int32_t>* ids) const;
  void EncodeShort(std::string_view word, std::vector<int32_t>* ids) const;
  void NotePair(ShortWord* word, uint32_t left) const;
  void AppendPiece(std::string_view text, std::vector<int32_t>* ids) const;

  const PieceTable& pieces_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PAIR_MERGER_H_
