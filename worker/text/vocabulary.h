// Vocabulary: a tokenizer's pieces, in the data structures that encoding needs.
//
// Thread safety: const after construction; any thread.
#ifndef HEARTH_WORKER_TEXT_VOCABULARY_H_
#define HEARTH_WORKER_TEXT_VOCABULARY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {

// SpaceRuns: the tokens of a run of spaces.
//
// Gemma has a piece for each run of 2 to 31 spaces. SentencePiece takes the longest piece first;
// transformers merges neighbours pair by pair. They agree up to 31 spaces and differ beyond (32:
// SentencePiece 31 + 1, transformers 16 + 16). SpaceRuns follows transformers. Standard library
// only. Thread safety: const after construction.
class SpaceRuns {
 public:
  SpaceRuns() = default;
  // `pieces`: never-merged pieces of spaces only, as length in spaces -> id.
  explicit SpaceRuns(std::map<size_t, int32_t> pieces);

  // Returns true if there is no piece for two spaces; runs are then ordinary text.
  bool empty() const { return id_by_length_.count(2) == 0; }
  // Length of the longest piece in spaces; at least 1.
  size_t longest() const { return id_by_length_.empty() ? 1 : id_by_length_.rbegin()->first; }
  // Appends the tokens of `count` >= 2 spaces. Returns how many spaces at the end stay unmerged (0
  // or 1): they belong to the text that follows.
  size_t Append(size_t count, std::vector<int32_t>* ids) const;

 private:
  std::map<size_t, int32_t> id_by_length_;
  std::vector<size_t> lengths_by_id_;  // order of merges
};

// PieceMatcher: finds the longest of a fixed set of strings at the start of a text.
//
// Gemma has about 6,400 pieces that are never merged (turn markers, runs of line ends and of
// spaces, HTML tags). Text is split at them first. Standard library only. Thread safety: const
// after construction.
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
  // REQUIRES: texts are not empty and not repeated.
  explicit PieceMatcher(std::vector<Piece> pieces);

  // Returns whether some piece has this first byte; quickly rules out most positions.
  bool Starts(char first) const { return starts_[static_cast<uint8_t>(first)]; }
  std::optional<Match> Longest(std::string_view text) const;

 private:
  std::vector<Piece> pieces_;       // ascending by text
  std::array<bool, 256> starts_{};  // first bytes of the pieces
};

class Vocabulary {
 public:
  // REQUIRES: `pieces` by id, as read by vocabulary_file.h and accepted by Tokenizer::Make.
  explicit Vocabulary(const std::vector<VocabularyPiece>& pieces);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  struct Token {
    std::string bytes;     // its bytes in a text
    bool special = false;  // not shown to readers
  };
  const Token& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  // Returns the longest never-merged piece at the start of the text: a normalized piece (with
  // spaces as U+0020 or U+2581), or a piece that is not normalized.
  std::optional<PieceMatcher::Match> LongestWhole(bool normalized, std::string_view text) const;
  // Returns whether such a piece may start with this byte.
  bool MayStartWhole(bool normalized, char first) const {
    return normalized ? normalized_.Starts(first == kSpaceMark[0] ? ' ' : first) ||
                            (first == kSpaceMark[0] && normalized_.Starts(first))
                      : matcher_.Starts(first);
  }
  // Maximum bytes of a normalized piece in a text; 0 if there is none.
  size_t longest_normalized_bytes() const { return longest_normalized_bytes_; }
  const SpaceRuns& space_runs() const { return space_runs_; }
  // A piece that merging produces.
  struct Made {
    int32_t id = 0;
    float score = 0;  // the merge with the better score comes first
  };
  // Returns null if no piece has this text. Spaces in `text` are U+0020.
  const Made* FindMade(std::string_view text) const;
  size_t longest_made_bytes() const { return longest_made_bytes_; }
  // Appends the id of the piece with this text or, if there is none, the ids of its bytes.
  void AppendIds(std::string_view text, std::vector<int32_t>* ids) const;

  // Returns whether merges never cross a border between these characters: true if no piece has them
  // side by side. Spaces may be U+0020 or U+2581. May return false for such a border, because pairs
  // of characters share bits.
  bool MayCut(char32_t left, char32_t right) const { return !side_by_side_[PairOf(left, right)]; }
  // Returns the id of a piece. Spaces in `piece` are U+2581, as in the files.
  std::optional<int32_t> Find(std::string_view piece) const;

 private:
  // Gemma's pieces contain 33,873 pairs of characters: 3 % of the bits, which take 128 KiB.
  static constexpr size_t kPairBits = size_t{1} << 20;
  static size_t PairOf(char32_t left, char32_t right) {
    if (left == kMarkCharacter) left = U' ';
    if (right == kMarkCharacter) right = U' ';
    // 2^64 divided by the golden ratio, which spreads similar pairs.
    const uint64_t hash = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15U;
    return (hash ^ hash >> 32) % kPairBits;
  }
  void AddTokens(const std::vector<VocabularyPiece>& pieces);
  void AddMade(std::string_view text, int32_t id, float score);

  std::vector<Token> tokens_;  // by id
  PieceMatcher matcher_;
  PieceMatcher normalized_;  // with spaces as U+0020
  size_t longest_normalized_bytes_ = 0;
  SpaceRuns space_runs_;
  std::array<int32_t, 256> byte_ids_{};
  absl::flat_hash_map<std::string_view, Made> made_;  // texts point into tokens_
  size_t longest_made_bytes_ = 1;
  std::vector<bool> side_by_side_;  // indexed by PairOf
};

// Returns `text` with each `from` replaced by `to`.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_H_
