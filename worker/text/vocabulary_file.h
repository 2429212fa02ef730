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

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace hearth {

// Values of SentencePiece's file format.
enum class PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// A space in a piece's text.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
inline constexpr char32_t kMarkCharacter = 0x2581;

struct VocabularyPiece {
  std::string text;
  PieceType type = PieceType::kNormal;
  float score = 0;  // of two merges the one that makes the piece of the better score comes first
};

// Whether text may become a piece of this type: the others come from elsewhere.
inline bool MayBecomeText(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined;
}

// Whether texts are divided at pieces of this type before anything else.
inline bool IsNeverMerged(PieceType type) {
  return type == PieceType::kControl || type == PieceType::kUnknown ||
         type == PieceType::kUserDefined;
}

// Whether it is written as a byte's is, "<0x41>".
bool IsBytePiece(std::string_view text);

// That no two pieces have one text, none is empty, and there are 256 of bytes.
absl::Status CheckPieces(const std::vector<VocabularyPiece>& pieces);
// That the merges, ["a", "b"] or "a b", are those of pieces that are made in the order of their
// ids, of any two halves that are pieces: then scores say the same.
absl::Status CheckMerges(const nlohmann::json& merges, const std::vector<VocabularyPiece>& pieces);

// By id, checked.
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerModel(std::string_view model);
absl::StatusOr<std::vector<VocabularyPiece>> ReadTokenizerJson(std::string_view json);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_VOCABULARY_FILE_H_
