// PieceMatcher: finds the longest of a fixed set of strings that a text starts with.
//
// Gemma has about 6,400 pieces that are never merged with their neighbours (turn markers, runs of
// line ends and of spaces, HTML tags); text is divided at them before anything else is tokenized.
// Standard library only. Thread safety: const after construction.
#ifndef HEARTH_WORKER_TEXT_PIECE_MATCHER_H_
#define HEARTH_WORKER_TEXT_PIECE_MATCHER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

class PieceMatcher {
 public:
  struct Piece {
    std::string text;
    int32_t id = 0;
  };
  struct Match {
    int32_t id = 0;
    size_t length_bytes = 0;
  };

  PieceMatcher() = default;
  // REQUIRES: no empty and no repeated text.
  explicit PieceMatcher(std::vector<Piece> pieces);

  // Whether some piece has this first byte: rules out most positions of a text at once.
  bool Starts(char first) const { return starts_[static_cast<uint8_t>(first)]; }
  std::optional<Match> Longest(std::string_view text) const;

 private:
  std::vector<Piece> pieces_;       // ascending by text
  std::array<bool, 256> starts_{};  // first bytes that occur
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PIECE_MATCHER_H_
