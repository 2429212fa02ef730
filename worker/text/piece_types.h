// The type of each piece of a SentencePiece model file, which its C++ interface does not tell in
// full (user-defined pieces look like normal ones there).
//
// Reads the protobuf wire format by itself: ModelProto.pieces (field 1), and of each piece its
// type (field 3); of trainer_spec (field 2) model_type (3), treat_whitespace_as_suffix (24) and
// byte_fallback (35); of normalizer_spec (field 3) precompiled_charsmap (2). Standard library only.
// Thread safety: a pure function.
#ifndef HEARTH_WORKER_TEXT_PIECE_TYPES_H_
#define HEARTH_WORKER_TEXT_PIECE_TYPES_H_

#include <optional>
#include <string_view>
#include <vector>

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

// Whether text may become a piece of this type: the others come from elsewhere.
inline bool MayBecomeText(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined;
}

// Whether texts are divided at pieces of this type before anything else.
inline bool IsNeverMerged(PieceType type) {
  return type == PieceType::kControl || type == PieceType::kUnknown ||
         type == PieceType::kUserDefined;
}

// Whether a text becomes tokens by merging neighbours, best score first, and nothing else: BPE,
// unchanged text, bytes for characters without a piece, no piece that is only an intermediate
// result.
bool IsPlainBpe(std::string_view model, const std::vector<PieceType>& types);

// Whether it changes a text by a table (precompiled_charsmap) before it makes pieces of it.
bool HasNormalizer(std::string_view model);

// By id. Nothing when the bytes are no well-formed message or hold a type outside the enum.
std::optional<std::vector<PieceType>> ReadPieceTypes(std::string_view model);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PIECE_TYPES_H_
