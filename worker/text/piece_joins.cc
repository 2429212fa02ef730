#include "worker/text/piece_joins.h"

#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/text/utf8.h"

namespace hearth {
namespace {

// Of two characters, not both U+0000, so that it is never 0.
uint64_t PairOf(char32_t left, char32_t right) { return uint64_t{left} << 32 | right; }

size_t HashOf(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15U;
  return static_cast<size_t>(pair ^ (pair >> 32));
}

bool IsRunOfMarks(std::string_view text) {
  for (; text.substr(0, kSpaceMark.size()) == kSpaceMark; text.remove_prefix(kSpaceMark.size())) {
  }
  return text.empty();
}

// What is wrong with a piece; null: nothing.
const char* BrokenPart(const VocabularyPiece& piece) {
  if (piece.text.find(' ') != std::string::npos) return "has a space that no text has";
  return std::isnan(piece.score) ? "has a score that is no number" : nullptr;
}
const char* UnprovenPart(const VocabularyPiece& piece) {
  if (piece.type != PieceType::kUserDefined || piece.text.find(kSpaceMark) == std::string::npos) {
    return nullptr;
  }
  if (!IsRunOfMarks(piece.text)) return "is never merged and has a space among other characters";
  return piece.text.size() == kSpaceMark.size() ? "is a single space that is never merged"
                                                : nullptr;
}

std::string About(const VocabularyPiece& piece, const char* what) {
  return absl::StrCat("the piece \"", piece.text, "\" ", what);
}

}  // namespace

absl::StatusOr<PieceJoins> PieceJoins::Prove(const std::vector<VocabularyPiece>& pieces) {
  PieceJoins joins;
  joins.others_.resize(2);
  bool runs = false, pairs = false;
  for (const VocabularyPiece& piece : pieces) {
    if (!MayBecomeText(piece.type)) continue;
    if (const char* broken = BrokenPart(piece))
      return absl::InvalidArgumentError(About(piece, broken));
    if (const char* unproven = UnprovenPart(piece))
      return absl::UnimplementedError(About(piece, unproven));
    if (piece.type == PieceType::kUserDefined && IsRunOfMarks(piece.text)) {
      runs = true;
      pairs = pairs || piece.text.size() == 2 * kSpaceMark.size();
    }
    char32_t left = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const Character character = CharacterAt(piece.text, at);
      const char32_t right = character.code == kMarkCharacter ? U' ' : character.code;
      if (at > 0) joins.Note(left, right);
      left = right;
      at += character.bytes;
    }
  }
  if (runs && !pairs) {
    return absl::UnimplementedError(
        "runs of spaces are pieces that are never merged, but a run of two is none");
  }
  return joins;
}

void PieceJoins::Note(char32_t left, char32_t right) {
  if ((left | right) < kAscii) {
    ascii_.set(left * kAscii + right);
    return;
  }
  if (FindOther(left, right)) return;
  if (2 * (count_ + 1) > others_.size()) {
    std::vector<uint64_t> fewer(2 * others_.size());
    fewer.swap(others_);
    count_ = 0;
    for (const uint64_t pair : fewer) {
      if (pair != 0) Note(static_cast<char32_t>(pair >> 32), static_cast<char32_t>(pair));
    }
  }
  const size_t mask = others_.size() - 1;
  const uint64_t pair = PairOf(left, right);
  size_t at = HashOf(pair) & mask;
  while (others_[at] != 0) at = (at + 1) & mask;
  others_[at] = pair;
  ++count_;
}

bool PieceJoins::FindOther(char32_t left, char32_t right) const {
  const size_t mask = others_.size() - 1;
  const uint64_t pair = PairOf(left, right);
  for (size_t at = HashOf(pair) & mask; others_[at] != 0; at = (at + 1) & mask) {
    if (others_[at] == pair) return true;
  }
  return false;
}

}  // namespace hearth
