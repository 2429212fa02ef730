// Vocabulary: what a tokenizer knows about its pieces, in the forms that encoding asks for.
//
// Standard library only. Thread safety: const after construction; any thread.
#ifndef HEARTH_WORKER_TEXT_VOCABULARY_H_
#define HEARTH_WORKER_TEXT_VOCABULARY_H_

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/text/pair_merger.h"
#include "worker/text/piece_joins.h"
#include "worker/text/piece_types.h"

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
  // `pieces` by id; those of type kByte are written "<0x41>". `plain_bpe`: what IsPlainBpe says of
  // the model. `prove`: false leaves out what only a proof allows.
  Vocabulary(const std::vector<VocabularyPiece>& pieces, bool plain_bpe, bool prove);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  struct Token {
    std::string bytes;     // what it is in a text
    bool special = false;  // not for a reader's eyes
    bool unknown = false;  // stands for what no piece has
  };
  const Token& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  // The pieces that are never merged.
  const PieceMatcher& matcher() const { return matcher_; }
  const SpaceRuns& space_runs() const { return space_runs_; }
  // Whether some piece holds this byte right before a space: Gemma has one such piece, "> </".
  bool JoinsSpace(char byte) const { return joins_space_[static_cast<uint8_t>(byte)]; }
  // Null: the model is of a kind that Hearth does not know how to merge.
  const PairMerger* merger() const { return merger_.has_value() ? &*merger_ : nullptr; }
  // REQUIRES: merger().
  const PieceTable& table() const {
    assert(merger_.has_value());
    return *table_;
  }
  // Null: nothing is proven about where texts may be cut. Never without a merger.
  const PieceJoins* joins() const { return joins_.has_value() ? &*joins_ : nullptr; }
  const std::string& why_no_joins() const { return why_no_joins_; }

 private:
  void AddTokens(const std::vector<VocabularyPiece>& pieces);
  void AddMerger(const std::vector<VocabularyPiece>& pieces);
  void NoteMadeOfSelf();

  std::vector<Token> tokens_;  // by id
  PieceMatcher matcher_;
  SpaceRuns space_runs_;
  std::array<bool, 256> joins_space_{};
  std::optional<PieceTable> table_;
  std::optional<PairMerger> merger_;
  std::optional<PieceJoins> joins_;
  std::string why_no_joins_;
};

// `text` with `to` in place of each `from`.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_H_
