// Reads the vocabulary of a model folder, from tokenizer.model or tokenizer.json, as a list of
// pieces.
//
// tokenizer.model is SentencePiece's ModelProto (sentencepiece_model.proto, public); its wire
// format is parsed here. tokenizer.json is written by the library `tokenizers`. Both must have
// Gemma's settings: byte-pair encoding of unchanged text, byte pieces for characters without a
// piece, spaces as U+2581.
// Thread safety: pure functions. Errors: kInvalidArgument: the file is broken. kUnimplemented: the
// file needs a feature that Gemma's tokenizer does not have.
#ifndef HEARTH_WORKER_TEXT_VOCABULARY_FILE_H_
#define HEARTH_WORKER_TEXT_VOCABULARY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

// Types of pieces, with the values of SentencePiece's file format.
enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,  // a piece that is not used; if the piece's text is empty, its id has no token
  kByte = 6,
  // Not in the file format: an added token that no merge produces. Text is split at it, as at a
  // user-defined piece.
  kWhole = 7,
};

// How a piece's text writes a space: U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
inline constexpr char32_t kMarkCharacter = 0x2581;

struct VocabularyPiece {
  std::string text;
  PieceType type = PieceType::kNormal;
  float score = 0;  // the merge that produces the better score is done first
  // For a never-merged piece: text is split at it after all other never-merged pieces, with spaces
  // as U+2581.
  bool is_normalized = false;
};

// Returns whether merging may produce pieces of this type.
inline bool MayBecomeText(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined;
}

// Returns whether text is split at pieces of this type before merging.
inline bool IsNeverMerged(PieceType type) {
  return type == PieceType::kControl || type == PieceType::kUnknown ||
         type == PieceType::kUserDefined || type == PieceType::kWhole;
}

// Returns whether the text is written like a byte piece, "<0x41>".
inline bool IsBytePiece(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return text.size() == 6 && text.substr(0, 3) == "<0x" && is_digit(text[3]) && is_digit(text[4]) &&
         text[5] == '>';
}

// Limits. Gemma has 262,144 pieces of 1.9 MB in all, and 514,906 merges. A tokenizer uses at most
// 500 bytes per piece plus nine times the bytes of all pieces.
inline constexpr size_t kMaxPieces = size_t{1} << 19, kMaxMerges = size_t{1} << 20;
inline constexpr size_t kMaxVocabularyBytes = size_t{16} << 20;
// Gemma's longest piece has 93 bytes.
inline constexpr size_t kMaxPieceBytes = 512;

// Returns the beginning of `text`, which may be long, for messages.
std::string ShownText(std::string_view text);

// Returns a note that a new token gets the id `id` although its file says `said`.
std::string IdNote(std::string_view text, uint64_t id, uint64_t said);

// The two texts that a merge joins.
using MergeHalves = std::pair<std::string_view, std::string_view>;
// Splits a merge written as "a b". Returns nullopt if `text` has another form.
std::optional<MergeHalves> MergeOf(std::string_view text);

// kInvalidArgument: `pieces` or `bytes` exceeds its limit above. Call before adding each piece.
absl::Status CheckPieceRoom(size_t pieces, size_t bytes);
// Returns an error unless texts are unique, only ids without a piece have an empty text, and there
// are 256 byte pieces.
absl::Status CheckPieces(const std::vector<VocabularyPiece>& pieces);
// Returns an error unless merges are in the order of the ids that they produce, and include every
// pair of pieces that forms a piece: ids can then replace scores. `merge_at`: returns nullopt for a
// merge that is not a pair. Changes never-merged pieces that no merge produces from kUserDefined to
// kWhole.
absl::Status CheckMerges(size_t merges,
                         absl::FunctionRef<std::optional<MergeHalves>(size_t)> merge_at,
                         std::vector<VocabularyPiece>* pieces);

// Return the pieces in order of ids, after all checks. `notes`: receives ignored settings, and ids
// that differ from the file's because transformers assigns other ids; may be null.
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerModel(std::string_view model);
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerJson(
    std::string_view json, std::vector<std::string>* notes = nullptr);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_FILE_H_
