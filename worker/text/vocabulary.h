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
// Gemma has a piece for each run of 2 to 31 spaces. SentencePiece uses the longest piece first;
// transformers merges neighbours pair by pair. The results are equal up to 31 spaces, and differ
// for longer runs (32 spaces: SentencePiece 31 + 1, transformers 16 + 16). SpaceRuns does as
// transformers. Uses the standard library only. Thread safety: const after construction.
class SpaceRuns {
 public:
  SpaceRuns() = default;
  // `pieces`: the never-merged pieces that have only spaces: number of spaces -> id.
  explicit SpaceRuns(std::map<size_t, int32_t> pieces);

  // Returns true if there is no piece for two spaces: runs of spaces are then encoded as ordinary
  // text.
  bool empty() const { return id_by_length_.count(2) == 0; }
  // Returns the number of spaces of the longest piece; at least 1.
  size_t longest() const { return id_by_length_.empty() ? 1 : id_by_length_.rbegin()->first; }
  // Appends the tokens of `count` >= 2 spaces. Returns the number of spaces at the end (0 or 1)
  // that no token includes: they belong to the text after the run.
  size_t Append(size_t count, std::vector<int32_t>* ids) const;

 private:
  std::map<size_t, int32_t> id_by_length_;
  // Lengths of pieces, in order of ids, which is the order of merges.
  std::vector<size_t> lengths_by_id_;
};

// PieceMatcher: finds the longest of a fixed set of strings at the start of a text.
//
// Gemma has about 6,400 pieces that are never merged (turn markers, runs of line ends and of
// spaces, HTML tags). Text is split at these pieces first. Uses the standard library only. Thread
// safety: const after construction.
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
  // REQUIRES: no text is empty or repeated.
  explicit PieceMatcher(std::vector<Piece> pieces);

  // Returns whether a piece begins with this byte. Excludes most positions quickly.
  bool Starts(char first) const { return starts_[static_cast<uint8_t>(first)]; }
  std::optional<Match> Longest(std::string_view text) const;

 private:
  std::vector<Piece> pieces_;       // ascending by text
  std::array<bool, 256> starts_{};  // first bytes of the pieces
};

class Vocabulary {
 public:
  // REQUIRES: `pieces` are in order of ids, were read by vocabulary_file.h, and pass the checks of
  // Tokenizer::Make.
  explicit Vocabulary(const std::vector<VocabularyPiece>& pieces);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  struct Token {
    std::string bytes;     // the bytes that the token stands for
    bool special = false;  // true: the token is not shown to readers
  };
  const Token& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  // Returns the longest never-merged piece at the start of the text, among the normalized pieces
  // (spaces in the text are U+0020 or U+2581) or among all other pieces.
  std::optional<PieceMatcher::Match> LongestWhole(bool normalized, std::string_view text) const;
  // Returns whether LongestWhole may find a piece that begins with this byte.
  bool MayStartWhole(bool normalized, char first) const {
    return normalized ? normalized_.Starts(first == kSpaceMark[0] ? ' ' : first) ||
                            (first == kSpaceMark[0] && normalized_.Starts(first))
                      : matcher_.Starts(first);
  }
  // Returns the maximum bytes of a normalized piece in a text; 0 if there are no normalized pieces.
  size_t longest_normalized_bytes() const { return longest_normalized_bytes_; }
  const SpaceRuns& space_runs() const { return space_runs_; }
  // A piece that merges can produce.
  struct Made {
    int32_t id = 0;
    float score = 0;  // the merge with the better score is done first
  };
  // Returns the piece with this text, or null. Spaces in `text` are U+0020.
  const Made* FindMade(std::string_view text) const;
  size_t longest_made_bytes() const { return longest_made_bytes_; }
  // Appends the id of the piece with this text. If there is no such piece, appends the ids of its
  // bytes.
  void AppendIds(std::string_view text, std::vector<int32_t>* ids) const;

  // Returns true only if no merge joins these two neighbouring characters, because no piece
  // contains them side by side. Spaces may be U+0020 or U+2581. May return false although no merge
  // joins them, because pairs of characters share bits.
  bool MayCut(char32_t left, char32_t right) const { return !side_by_side_[PairOf(left, right)]; }
  // Returns the id of a piece. Spaces in `piece` are U+2581, as in the files.
  std::optional<int32_t> Find(std::string_view piece) const;

 private:
  // Gemma's pieces contain 33,873 pairs of characters: they set 3 % of the bits. All bits take 128
  // KiB.
  static constexpr size_t kPairBits = size_t{1} << 20;
  static size_t PairOf(char32_t left, char32_t right) {
    if (left == kMarkCharacter) left = U' ';
    if (right == kMarkCharacter) right = U' ';
    // 2^64 divided by the golden ratio: spreads similar pairs.
    const uint64_t hash = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15U;
    return (hash ^ hash >> 32) % kPairBits;
  }
  void AddTokens(const std::vector<VocabularyPiece>& pieces);
  void AddMade(std::string_view text, int32_t id, float score);

  std::vector<Token> tokens_;  // by id
  PieceMatcher matcher_;
  PieceMatcher normalized_;  // texts with spaces as U+0020
  size_t longest_normalized_bytes_ = 0;
  SpaceRuns space_runs_;
  std::array<int32_t, 256> byte_ids_{};
  absl::flat_hash_map<std::string_view, Made> made_;  // keys point into tokens_
  size_t longest_made_bytes_ = 1;
  std::vector<bool> side_by_side_;  // indexed by PairOf
};

// Returns `text` with each `from` replaced by `to`.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_H_
