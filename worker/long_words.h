// LongWords: byte-pair encoding of one word of any length, which can be stopped.
//
// SentencePiece encodes what it is given in one call: a word of megabytes takes seconds, and nobody
// can end it. Here the same merges are made in the same order, the best score first and of equal
// ones the leftmost, with a question to the caller now and then. Only for words without a piece
// that is never merged: those were taken out before.
// Standard library only. Thread safety: const after construction, if `find` is.
#ifndef HEARTH_WORKER_LONG_WORDS_H_
#define HEARTH_WORKER_LONG_WORDS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace hearth {

class LongWords {
 public:
  struct Piece {
    int32_t id = 0;
    float score = 0;
  };
  // The piece that is written so, if there is one that characters may become.
  using Find = std::function<std::optional<Piece>(std::string_view)>;

  // `byte_ids`: what the bytes of a character without a piece become.
  LongWords(const std::array<int32_t, 256>& byte_ids, Find find)
      : byte_ids_(byte_ids), find_(std::move(find)) {}

  // Appends the word's ids; false, and some of them or none, when `stopped` said so. 48 bytes of
  // memory for each character, at most. REQUIRES: well-formed UTF-8 of less than 4 GiB.
  bool Encode(std::string_view word, const std::function<bool()>& stopped,
              std::vector<int32_t>* ids) const;

 private:
  std::array<int32_t, 256> byte_ids_;
  Find find_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_LONG_WORDS_H_
