// Reads the vocabulary of a model folder, from tokenizer.model or tokenizer.json, as one list of
// pieces.
//
// tokenizer.model is SentencePiece's ModelProto (sentencepiece_model.proto, public), whose wire
// format is read here; tokenizer.json is what the library tokenizers writes. Both must say what
// Gemma's say: byte-pair encoding of an unchanged text, bytes for characters without a piece, a
// space written as U+2581.
// Thread safety: pure functions. Errors: kInvalidArgument, the file is broken; kUnimplemented, it
// asks for what Gemma's tokenizer does not do.
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
  kUnused = 5,  // an empty one stands for an id that no piece has
  kByte = 6,
  // Not of the format: an added token outside the merges. A text is divided at it, as at a
  // user-defined piece, but merging never makes it.
  kWhole = 7,
};

// A space in a piece's text.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
inline constexpr char32_t kMarkCharacter = 0x2581;

struct VocabularyPiece {
  std::string text;
  PieceType type = PieceType::kNormal;
  float score = 0;  // of two merges the one that makes the piece of the better score comes first
  // If never merged: a text is divided at it after all others, with each space as U+2581.
  bool is_normalized = false;
};

// Whether text may become a piece of this type: the others come from elsewhere.
inline bool MayBecomeText(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined;
}

// Whether texts are divided at pieces of this type before anything else.
inline bool IsNeverMerged(PieceType type) {
  return type == PieceType::kControl || type == PieceType::kUnknown ||
         type == PieceType::kUserDefined || type == PieceType::kWhole;
}

// Whether it is written as a byte's is, "<0x41>".
bool IsBytePiece(std::string_view text);

// Gemma's pieces are 262,144 of 1.9 MB, with 514,906 merges. A tokenizer takes 500 bytes for a
// piece and nine times its text at most.
inline constexpr size_t kMaxPieces = size_t{1} << 19, kMaxMerges = size_t{1} << 20;
inline constexpr size_t kMaxVocabularyBytes = size_t{16} << 20;
// Gemma's longest piece has 93 bytes.
inline constexpr size_t kMaxPieceBytes = 512;

// What a message quotes of a text that may be long.
std::string ShownText(std::string_view text);

// A note on a new token whose id differs from the one that its file says.
std::string IdNote(std::string_view text, uint64_t id, uint64_t said);

// The two texts that a merge joins.
using MergeHalves = std::pair<std::string_view, std::string_view>;
// Of a merge that is written "a b". Nothing: it is not.
std::optional<MergeHalves> MergeOf(std::string_view text);

// kInvalidArgument: more pieces, or more bytes of text, than the limits above. Asked before each
// piece is added.
absl::Status CheckPieceRoom(size_t pieces, size_t bytes);
// That no two pieces have one text, none but those of missing ids is empty, and there are 256 of
// bytes.
absl::Status CheckPieces(const std::vector<VocabularyPiece>& pieces);
// That the merges are those of pieces that are made in the order of their ids, of any two halves
// that are pieces: then scores say the same. `merge_at`: nothing for a merge that is no pair.
// Pieces that are never merged may be missing from the merges: they become kWhole or stay kControl.
absl::Status CheckMerges(size_t merges,
                         absl::FunctionRef<std::optional<MergeHalves>(size_t)> merge_at,
                         std::vector<VocabularyPiece>* pieces);

// By id, checked. `notes`: gets what the file asks for besides and is not done, and ids that differ
// from the file's, as in transformers; may be null.
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerModel(std::string_view model);
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerJson(
    std::string_view json, std::vector<std::string>* notes = nullptr);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_FILE_H_
