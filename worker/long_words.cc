#include "worker/long_words.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace hearth {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
// Between two questions whether to go on: about a millisecond.
constexpr uint32_t kStepsBetweenQuestions = 4096;

// A part of the word; without bytes once it was joined to the one before.
struct Symbol {
  uint32_t begin = 0, bytes = 0;
  uint32_t previous = kNone, next = kNone;
};

// Two neighbours that a piece joins. Stale when either has changed since.
struct Merge {
  float score = 0;
  uint32_t left = 0, right = 0;
  uint32_t bytes = 0;                         // of the piece
  bool operator<(const Merge& other) const {  // of a heap: the best is the greatest
    return score < other.score || (score == other.score && left > other.left);
  }
};

uint32_t CharacterBytes(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

std::vector<Symbol> Characters(std::string_view word) {
  std::vector<Symbol> symbols;
  for (uint32_t at = 0; at < word.size();) {
    const uint32_t number = static_cast<uint32_t>(symbols.size());
    if (number > 0) symbols.back().next = number;
    const uint32_t bytes = CharacterBytes(word[at]);
    symbols.push_back({at, bytes, number == 0 ? kNone : number - 1, kNone});
    at += bytes;
    assert(at <= word.size());
  }
  return symbols;
}

}  // namespace

bool LongWords::Encode(std::string_view word, const std::function<bool()>& stopped,
                       std::vector<int32_t>* ids) const {
  std::vector<Symbol> symbols = Characters(word);
  std::vector<Merge> merges;  // a heap
  const auto note = [&](uint32_t left, uint32_t right) {
    if (left == kNone || right == kNone) return;
    const uint32_t bytes = symbols[left].bytes + symbols[right].bytes;
    const std::optional<Piece> piece = find_(word.substr(symbols[left].begin, bytes));
    if (!piece.has_value()) return;
    merges.push_back({piece->score, left, right, bytes});
    std::push_heap(merges.begin(), merges.end());
  };
  uint32_t steps = 0;
  const auto is_over = [&] {
    return ++steps % kStepsBetweenQuestions == 0 && stopped && stopped();
  };

  for (uint32_t i = 1; i < symbols.size(); ++i) {
    note(i - 1, i);
    if (is_over()) return false;
  }
  while (!merges.empty()) {
    std::pop_heap(merges.begin(), merges.end());
    const Merge merge = merges.back();
    merges.pop_back();
    if (is_over()) return false;
    Symbol& left = symbols[merge.left];
    Symbol& right = symbols[merge.right];
    if (left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != merge.bytes) continue;
    left.bytes = merge.bytes;
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = merge.left;
    right.bytes = 0;
    note(left.previous, merge.left);
    note(merge.left, left.next);
  }
  for (uint32_t at = symbols.empty() ? kNone : 0; at != kNone; at = symbols[at].next) {
    const std::string_view text = word.substr(symbols[at].begin, symbols[at].bytes);
    const std::optional<Piece> piece = find_(text);
    if (piece.has_value()) {
      ids->push_back(piece->id);
    } else {
      for (const char byte : text) ids->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
  }
  return true;
}

}  // namespace hearth
