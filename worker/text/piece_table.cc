#include "worker/text/piece_table.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

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

}  // namespace hearth
