#include "worker/text/pair_merger.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace hearth {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr int32_t kNoId = -1;
// Looking for the best pair takes no longer than a heap does up to here.
constexpr size_t kShortWordBytes = 64;
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

// Of a word that needs no heap: what it is made of, and beside each part what a merge with the next
// would make.
struct PairMerger::ShortWord {
  std::string_view text;
  uint32_t parts = 0;
  uint8_t begin[kShortWordBytes + 1];  // of each part; the text's end after the last
  int32_t id[kShortWordBytes];         // kNoId: a character that was not looked up
  int32_t merged_id[kShortWordBytes];  // kNoId: no piece joins this part and the next
  float merged_score[kShortWordBytes];
};

bool PairMerger::Encode(std::string_view word, const std::function<bool()>& stopped,
                        std::vector<int32_t>* ids) const {
  if (word.size() > kShortWordBytes) return EncodeLong(word, stopped, ids);
  EncodeShort(word, ids);
  return true;
}

void PairMerger::NotePair(ShortWord* word, uint32_t left) const {
  const uint32_t begin = word->begin[left];
  const PieceTable::Piece* piece =
      pieces_.Find(word->text.substr(begin, word->begin[left + 2] - begin));
  word->merged_id[left] = piece == nullptr ? kNoId : static_cast<int32_t>(piece->id);
  if (piece != nullptr) word->merged_score[left] = piece->score;
}

void PairMerger::AppendPiece(std::string_view text, std::vector<int32_t>* ids) const {
  if (const PieceTable::Piece* piece = pieces_.Find(text)) {
    ids->push_back(static_cast<int32_t>(piece->id));
  } else {
    for (const char byte : text) ids->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  }
}

void PairMerger::EncodeShort(std::string_view text, std::vector<int32_t>* ids) const {
  ShortWord word;
  word.text = text;
  for (size_t at = 0; at < text.size(); at += CharacterBytes(text[at])) {
    word.id[word.parts] = kNoId;
    word.begin[word.parts++] = static_cast<uint8_t>(at);
  }
  word.begin[word.parts] = static_cast<uint8_t>(text.size());
  for (uint32_t left = 0; left + 1 < word.parts; ++left) NotePair(&word, left);
  for (;;) {
    uint32_t best = kNone;  // of equal ones the leftmost
    for (uint32_t left = 0; left + 1 < word.parts; ++left) {
      if (word.merged_id[left] == kNoId) continue;
      if (best == kNone || word.merged_score[left] > word.merged_score[best]) best = left;
    }
    if (best == kNone) break;
    word.id[best] = word.merged_id[best];
    --word.parts;
    for (uint32_t at = best + 1; at < word.parts; ++at) {
      word.begin[at] = word.begin[at + 1];
      word.id[at] = word.id[at + 1];
      word.merged_id[at] = word.merged_id[at + 1];
      word.merged_score[at] = word.merged_score[at + 1];
    }
    word.begin[word.parts] = static_cast<uint8_t>(text.size());
    if (best > 0) NotePair(&word, best - 1);
    if (best + 1 < word.parts) NotePair(&word, best);
  }
  for (uint32_t at = 0; at < word.parts; ++at) {
    const uint32_t begin = word.begin[at];
    if (word.id[at] != kNoId) {
      ids->push_back(word.id[at]);
    } else {
      AppendPiece(text.substr(begin, word.begin[at + 1] - begin), ids);
    }
  }
}

bool PairMerger::EncodeLong(std::string_view word, const std::function<bool()>& stopped,
                            std::vector<int32_t>* ids) const {
  std::vector<Symbol> symbols = Characters(word);
  std::vector<Merge> merges;  // a heap
  const auto note = [&](uint32_t left, uint32_t right) {
    if (left == kNone || right == kNone) return;
    const uint32_t bytes = symbols[left].bytes + symbols[right].bytes;
    const PieceTable::Piece* piece = pieces_.Find(word.substr(symbols[left].begin, bytes));
    if (piece == nullptr) return;
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
    AppendPiece(word.substr(symbols[at].begin, symbols[at].bytes), ids);
  }
  return true;
}

}  // namespace hearth
