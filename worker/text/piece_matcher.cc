#include "worker/text/piece_matcher.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace hearth {

PieceMatcher::PieceMatcher(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.text < b.text; });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    assert(!pieces_[i].text.empty());
    assert(i == 0 || pieces_[i - 1].text != pieces_[i].text);
    starts_[static_cast<uint8_t>(pieces_[i].text[0])] = true;
  }
}

// The pieces that share the text's first `depth` bytes are one run of the sorted list; each step
// narrows the run by one byte. The first of a run is as long as the shared part exactly when the
// shared part is itself a piece.
std::optional<PieceMatcher::Match> PieceMatcher::Longest(std::string_view text) const {
  if (text.empty() || !starts_[static_cast<uint8_t>(text[0])]) return std::nullopt;
  std::optional<Match> longest;
  auto first = pieces_.begin();
  auto last = pieces_.end();
  for (size_t depth = 0; depth < text.size(); ++depth) {
    const uint8_t byte = static_cast<uint8_t>(text[depth]);
    // Shorter pieces of the run sort before every piece that has a byte here.
    const auto byte_at = [depth](const Piece& piece) {
      return depth < piece.text.size() ? static_cast<int>(static_cast<uint8_t>(piece.text[depth]))
                                       : -1;
    };
    first = std::partition_point(first, last, [&](const Piece& p) { return byte_at(p) < byte; });
    last = std::partition_point(first, last, [&](const Piece& p) { return byte_at(p) <= byte; });
    if (first == last) break;
    if (first->text.size() == depth + 1) longest = Match{first->id, depth + 1};
  }
  return longest;
}

}  // namespace hearth
