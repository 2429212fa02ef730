#include "worker/text/piece_joins.h"

#include <cassert>
#include <cmath>

#include "worker/text/utf8.h"

namespace hearth {
namespace {

constexpr char32_t kMarkCharacter = 0x2581;  // of kSpaceMark

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

// Null: nothing is wrong with the piece.
const char* WhatIsWrongWith(const VocabularyPiece& piece) {
  if (piece.text.empty()) return "is empty";
  if (FindInvalidUtf8(piece.text).has_value()) return "is no UTF-8";
  if (piece.text.find(' ') != std::string_view::npos) return "has a space that no text has";
  if (std::isnan(piece.score)) return "has a score that is no number";
  if (piece.type != PieceType::kUserDefined ||
      piece.text.find(kSpaceMark) == std::string_view::npos) {
    return nullptr;
  }
  if (!IsRunOfMarks(piece.text)) return "is never merged and has a space among other characters";
  return piece.text.size() == kSpaceMark.size() ? "is a single space that is never merged"
                                                : nullptr;
}

}  // namespace

std::optional<PieceJoins> PieceJoins::Prove(const std::vector<VocabularyPiece>& pieces,
                                            bool plain_bpe, std::string* why_not) {
  if (!plain_bpe) {
    *why_not = "the model does more than merge neighbours";
    return std::nullopt;
  }
  PieceJoins joins;
  joins.others_.resize(2);
  bool runs = false, pairs = false;
  for (const VocabularyPiece& piece : pieces) {
    if (!MayBecomeText(piece.type)) continue;
    if (const char* wrong = WhatIsWrongWith(piece)) {
      *why_not = "the piece \"" + std::string(piece.text) + "\" " + wrong;
      return std::nullopt;
    }
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
    *why_not = "runs of spaces are pieces that are never merged, but a run of two is none";
    return std::nullopt;
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

std::vector<size_t> PieceJoins::SafeCuts(std::string_view text) const {
  std::vector<size_t> cuts;
  char32_t left = 0;
  for (size_t at = 0; at < text.size();) {
    const Character right = CharacterAt(text, at);
    if (at > 0 && !MayJoin(left, right.code)) cuts.push_back(at);
    left = right.code;
    at += right.bytes;
  }
  return cuts;
}

}  // namespace hearth
