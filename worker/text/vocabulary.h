// Vocabulary: what a tokenizer knows about its pieces, in the forms that encoding asks for.
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

// SpaceRuns: which tokens a run of spaces becomes.
//
// Gemma has a piece for each run of 2 to 31 spaces. SentencePiece takes the longest piece first,
// transformers merges neighbours pair by pair; they agree up to 31 spaces and differ beyond (of 32,
// SentencePiece makes 31 + 1, transformers 16 + 16). Here it is done as in transformers.
// Standard library only. Thread safety: const after construction.
class SpaceRuns {
 public:
  SpaceRuns() = default;
  // The never-merged pieces made of spaces only: length in spaces -> id.
  explicit SpaceRuns(std::map<size_t, int32_t> pieces);

  // Without a piece for two spaces, runs are ordinary text.
  bool empty() const { return id_by_length_.count(2) == 0; }
  // The spaces of the longest piece; at least 1.
  size_t longest() const { return id_by_length_.empty() ? 1 : id_by_length_.rbegin()->first; }
  // Appends the tokens of `count` >= 2 spaces. Returns how many spaces at the end found no partner
  // (0 or 1): they belong to what follows.
  size_t Append(size_t count, std::vector<int32_t>* ids) const;

 private:
  std::map<size_t, int32_t> id_by_length_;
  std::vector<size_t> lengths_by_id_;  // the order in which merges are tried
};

// PieceMatcher: finds the longest of a fixed set of strings that a text starts with.
//
// Gemma has about 6,400 pieces that are never merged with their neighbours (turn markers, runs of
// line ends and of spaces, HTML tags); text is divided at them before anything else is tokenized.
// Standard library only. Thread safety: const after construction.
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

class Vocabulary {
 public:
  // REQUIRES: `pieces` by id, as vocabulary_file.h reads them, that Tokenizer::Make accepts.
  explicit Vocabulary(const std::vector<VocabularyPiece>& pieces);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  struct Token {
    std::string bytes;     // what it is in a text
    bool special = false;  // not for a reader's eyes
  };
  const Token& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  // The longest piece that is never merged at the front of a text: of those that are looked for in
  // the text, or of the normalized ones, for which a space is U+0020 or U+2581.
  std::optional<PieceMatcher::Match> LongestWhole(bool normalized, std::string_view text) const;
  // Whether there may be one, by the first byte.
  bool MayStartWhole(bool normalized, char first) const {
    return normalized ? normalized_.Starts(first == kSpaceMark[0] ? ' ' : first) ||
                            (first == kSpaceMark[0] && normalized_.Starts(first))
                      : matcher_.Starts(first);
  }
  // No normalized piece takes more bytes of a text than this; 0: there is none.
  size_t longest_normalized_bytes() const { return longest_normalized_bytes_; }
  const SpaceRuns& space_runs() const { return space_runs_; }
  // A piece that merging makes.
  struct Made {
    int32_t id = 0;
    float score = 0;  // of two merges the one with the better score comes first
  };
  // Null if no piece has this text. A space in `text` is a space.
  const Made* FindMade(std::string_view text) const;
  size_t longest_made_bytes() const { return longest_made_bytes_; }
  // Appends the id of the piece with this text or, if there is none, the ids of the text's bytes.
  void AppendIds(std::string_view text, std::vector<int32_t>* ids) const;

  // Whether the merges on both sides of a border are independent of each other: merging only makes
  // pieces, so no merge crosses a border whose two characters no piece has side by side. A space is
  // U+0020 or U+2581. False for a few such borders, too: different pairs may share a bit.
  bool MayCut(char32_t left, char32_t right) const { return !side_by_side_[PairOf(left, right)]; }
  // The id of a piece as the file has it: a space is U+2581.
  std::optional<int32_t> Find(std::string_view piece) const;

 private:
  // Gemma's pieces have 33,873 pairs of characters: 3 % of the bits, in 128 KiB.
  static constexpr size_t kPairBits = size_t{1} << 20;
  static size_t PairOf(char32_t left, char32_t right) {
    if (left == kMarkCharacter) left = U' ';
    if (right == kMarkCharacter) right = U' ';
    // 2^64 divided by the golden ratio: spreads pairs of neighbouring numbers.
    const uint64_t hash = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15U;
    return (hash ^ hash >> 32) % kPairBits;
  }
  void AddTokens(const std::vector<VocabularyPiece>& pieces);
  void AddMade(std::string_view text, int32_t id, float score);

  std::vector<Token> tokens_;  // by id
  PieceMatcher matcher_;
  PieceMatcher normalized_;  // with spaces
  size_t longest_normalized_bytes_ = 0;
  SpaceRuns space_runs_;
  std::array<int32_t, 256> byte_ids_{};
  absl::flat_hash_map<std::string_view, Made> made_;  // the texts lie in tokens_
  size_t longest_made_bytes_ = 1;
  std::vector<bool> side_by_side_;  // by PairOf: whether a piece has such a pair
};

// `text` with `to` in place of each `from`.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_H_
