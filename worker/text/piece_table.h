// PieceTable: finds a piece by its text, among all pieces that characters may become.
//
// One probe of one table for a text of up to 7 bytes, as most are; a quarter of a million pieces
// take 12 MB. Texts are as people write them: a space is a space. Standard library only. Thread
// safety: const after the last Add and Note.
#ifndef HEARTH_WORKER_TEXT_PIECE_TABLE_H_
#define HEARTH_WORKER_TEXT_PIECE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

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

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PIECE_TABLE_H_
