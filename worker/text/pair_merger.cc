#include "worker/text/pair_merger.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

namespace hearth {

namespace {

constexpr size_t kShortBytes = 7;
constexpr uint64_t kLongKey = uint64_t{1} << 63;  // of a text that its key does not tell
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15U;

uint64_t LoadBytes(const char* from, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

// Of 1 to 7 bytes: they themselves, overlapping reads instead of a loop.
uint64_t ShortBytes(const char* from, size_t bytes) {
  if (bytes >= 4) {
    uint32_t front, back;
    std::memcpy(&front, from, 4);
    std::memcpy(&back, from + bytes - 4, 4);
    return front | uint64_t{back} << (8 * (bytes - 4));
  }
  const auto byte = [from](size_t at) { return uint64_t{static_cast<uint8_t>(from[at])}; };
  return byte(0) | byte(bytes / 2) << (8 * (bytes / 2)) | byte(bytes - 1) << (8 * (bytes - 1));
}

uint64_t Scattered(uint64_t value) {
  value ^= value >> 32;
  value *= kOdd;
  value ^= value >> 29;
  value *= kOdd;
  return value ^ (value >> 32);
}

// Differs for different texts of up to 7 bytes; never 0.
uint64_t KeyOf(std::string_view text) {
  if (text.size() <= kShortBytes) {
    return ShortBytes(text.data(), text.size()) | uint64_t{text.size()} << 56;
  }
  uint64_t hash = text.size();
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) hash = Scattered(hash ^ LoadBytes(text.data() + at, 8));
  return Scattered(hash ^ LoadBytes(text.data() + text.size() - 8, 8)) | kLongKey;
}

}  // namespace

PieceTable::PieceTable(size_t pieces) {
  size_t places = 2;
  while (places < 2 * pieces) places *= 2;
  places_.resize(places);
}

// Where the text's piece is, or the free place where it would be.
size_t PieceTable::Place(std::string_view text, uint64_t key) const {
  const size_t mask = places_.size() - 1;
  for (size_t at = Scattered(key) & mask;; at = (at + 1) & mask) {
    const Piece& piece = places_[at];
    if (piece.key == 0) return at;
    if (piece.key != key) continue;
    if ((key & kLongKey) == 0) return at;
    const Text& known = text_of_[piece.id];
    if (known.bytes == text.size() &&
        std::memcmp(texts_.data() + known.begin, text.data(), text.size()) == 0) {
      return at;
    }
  }
}

void PieceTable::Add(std::string_view text, int32_t id, float score) {
  assert(!text.empty() && texts_.size() + text.size() <= UINT32_MAX);
  assert(id >= 0 && !std::isnan(score));
  assert(2 * (count_ + 1) <= places_.size());
  const uint64_t key = KeyOf(text);
  if (text.size() > kShortBytes) {
    if (text_of_.size() <= static_cast<size_t>(id)) text_of_.resize(static_cast<size_t>(id) + 1);
    text_of_[static_cast<size_t>(id)] = {static_cast<uint32_t>(texts_.size()),
                                         static_cast<uint32_t>(text.size())};
    texts_.append(text);
  }
  Piece& place = places_[Place(text, key)];
  assert(place.key == 0);
  place.key = key;
  place.id = static_cast<uint32_t>(id) & INT32_MAX;
  place.score = score;
  ++count_;
  longest_bytes_ = std::max(longest_bytes_, text.size());
}

void PieceTable::NoteMadeOfSelf(std::string_view text) {
  Piece& place = places_[Place(text, KeyOf(text))];
  assert(place.key != 0);
  place.made_of_self = 1;
}

const PieceTable::Piece* PieceTable::Find(std::string_view text) const {
  if (text.empty() || text.size() > longest_bytes_) return nullptr;
  const Piece& place = places_[Place(text, KeyOf(text))];
  return place.key == 0 ? nullptr : &place;
}

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
