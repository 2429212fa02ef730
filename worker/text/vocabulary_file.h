// Reads the vocabulary of a model folder, from tokenizer.model or tokenizer.json, as a list of
// pieces.
//
// tokenizer.model is SentencePiece's ModelProto (sentencepiece_model.proto, public); its wire
// format is parsed here. tokenizer.json is written by the library tokenizers. Both must have
// Gemma's settings: byte-pair encoding of unchanged text, bytes for characters without a piece,
// spaces as U+2581.
// Thread safety: pure functions. Errors: kInvalidArgument: the file is broken. kUnimplemented: it
// needs a feature that Gemma's tokenizer does not have.
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

// Values of SentencePiece's file format.
enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,  // with an empty text: an id without a piece
  kByte = 6,
  // Not in the format: an added token unknown to the merges. Text is split at it, as at a
  // user-defined piece, but merging never produces it.
  kWhole = 7,
};

// A space in a piece's text: U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
inline constexpr char32_t kMarkCharacter = 0x2581;

struct VocabularyPiece {
  std::string text;
  PieceType type = PieceType::kNormal;
  float score = 0;  // the merge that produces the better score comes first
  // For a never-merged piece: text is split at it after all others, with spaces as U+2581.
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
bool IsBytePiece(std::string_view text);

// Gemma has 262,144 pieces of 1.9 MB and 514,906 merges. A tokenizer takes at most 500 bytes per
// piece plus nine times its text.
inline constexpr size_t kMaxPieces = size_t{1} << 19, kMaxMerges = size_t{1} << 20;
inline constexpr size_t kMaxVocabularyBytes = size_t{16} << 20;
// Gemma's longest piece has 93 bytes.
inline constexpr size_t kMaxPieceBytes = 512;

// Returns the beginning of a possibly long text, for messages.
std::string ShownText(std::string_view text);

// Returns a note about a new token whose id differs from the id in its file.
std::string IdNote(std::string_view text, uint64_t id, uint64_t said);

// The two texts that a merge joins.
using MergeHalves = std::pair<std::string_view, std::string_view>;
// Splits a merge written as "a b". nullopt: it is not.
std::optional<MergeHalves> MergeOf(std::string_view text);

// kInvalidArgument: more pieces, or more bytes of text, than the limits above. Call before adding
// each piece.
absl::Status CheckPieceRoom(size_t pieces, size_t bytes);
// Checks that texts are unique, that only missing ids have an empty text, and that there are 256
// byte pieces.
absl::Status CheckPieces(const std::vector<VocabularyPiece>& pieces);
// Checks that merges are in the order of the ids of the pieces they produce, and that they include
// every pair of pieces that forms a piece: then ids work as scores. `merge_at`: nullopt if the
// merge is not a pair. Never-merged pieces that are missing from the merges become kWhole, or stay
// kControl.
absl::Status CheckMerges(size_t merges,
                         absl::FunctionRef<std::optional<MergeHalves>(size_t)> merge_at,
                         std::vector<VocabularyPiece>* pieces);

// Return the checked pieces, by id. `notes`: receives unsupported settings that are ignored, and
// ids that differ from the file's, as in transformers; may be null.
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerModel(std::string_view model);
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerJson(
    std::string_view json, std::vector<std::string>* notes = nullptr);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_FILE_H_
