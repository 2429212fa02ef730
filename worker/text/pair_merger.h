// PairMerger: byte-pair encoding of one word of any length, which can be stopped.
//
// Merges are made the best score first, and of equal ones the leftmost, as SentencePiece and
// transformers make them; the caller may stop them now and then. Only for words without pieces that
// are never merged: those were removed before.
// Standard library only. Thread safety: const after construction. Ownership: what it is given must
// outlive it.
#ifndef HEARTH_WORKER_TEXT_PAIR_MERGER_H_
#define HEARTH_WORKER_TEXT_PAIR_MERGER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

// PieceTable: finds a piece by its text, among all pieces that characters may become.
//
// One probe of one table for a text of up to 7 bytes, as most are; a quarter of a million pieces
// take 12 MB. Texts are as people write them: a space is a space. Standard library only. Thread
// safety: const after the last Add and Note.
class PieceTable {
 public:
  struct Piece {
    uint64_t key = 0;  // made of the text; 0: a free place
    uint32_t id : 31;
    uint32_t made_of_self : 1;  // whether its characters alone become it, and nothing else
    float score = 0;            // the better, the earlier it is made
    Piece() : id(0), made_of_self(0) {}
  };

  // For at most `pieces` of them.
  explicit PieceTable(size_t pieces);

  // REQUIRES: a text that no other piece has, not empty, all together less than 4 GiB; id >= 0;
  // score is no NaN.
  void Add(std::string_view text, int32_t id, float score);
  // REQUIRES: a piece is written so.
  void NoteMadeOfSelf(std::string_view text);
  // Null: no piece is written so.
  const Piece* Find(std::string_view text) const;
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Text {
    uint32_t begin = 0, bytes = 0;  // in texts_
  };
  size_t Place(std::string_view text, uint64_t key) const;

  std::vector<Piece> places_;  // a power of two, at most half of them taken
  std::string texts_;          // of the pieces whose key does not tell their text
  std::vector<Text> text_of_;  // by id
  size_t count_ = 0;
  size_t longest_bytes_ = 1;
};

class PairMerger {
 public:
  // `byte_ids`: what the bytes of a character without a piece become.
  PairMerger(const PieceTable* pieces, const std::array<int32_t, 256>* byte_ids)
      : pieces_(*pieces), byte_ids_(*byte_ids) {}

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
  const std::array<int32_t, 256>& byte_ids_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PAIR_MERGER_H_
