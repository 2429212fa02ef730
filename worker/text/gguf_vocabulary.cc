#include "worker/text/gguf_vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/utf8.h"
#include "worker/text/vocabulary.h"

namespace hearth {
namespace {

using Pieces = std::vector<VocabularyPiece>;

// Ids of Gemma's 262,144 pieces: byte pieces from kFirstByte on, merged pieces from kFirstNormal to
// kBehindNormal - 1; all other pieces are never merged.
constexpr size_t kFirstByte = 238, kFirstNormal = 494, kBehindNormal = 255968;
constexpr size_t kGemmaPieces = 262144, kUnknownId = 3;

bool IsGemmas(const Pieces& pieces) {
  return pieces.size() >= kGemmaPieces && pieces[2].text == "<bos>" &&
         pieces[kUnknownId].text == "<unk>" && pieces[106].text == "<end_of_turn>" &&
         pieces[kFirstByte].text == "<0x00>" && pieces[kFirstNormal - 1].text == "<0xFF>" &&
         pieces[kBehindNormal].text == "\t";
}

PieceType GemmasType(size_t id) {
  if (id <= kUnknownId) return id < kUnknownId ? PieceType::kControl : PieceType::kUnknown;
  if (id < kFirstByte || id >= kBehindNormal) return PieceType::kUserDefined;
  return id < kFirstNormal ? PieceType::kByte : PieceType::kNormal;
}

void TakeGemmasTypes(Pieces* pieces, std::vector<std::string>* notes) {
  size_t mistyped = 0;
  for (size_t id = 0; id < pieces->size(); ++id) {
    VocabularyPiece& piece = (*pieces)[id];
    const PieceType type = GemmasType(id);
    mistyped += IsNeverMerged(type) != IsNeverMerged(piece.type) ||
                (type == PieceType::kByte) != (piece.type == PieceType::kByte);
    piece.type = type;
    if (type != PieceType::kNormal) piece.score = 0;
  }
  if (mistyped == 0) return;
  notes->push_back(absl::StrCat("tokenizer: ", mistyped,
                                " pieces have wrong types in the file; Gemma 3's types are used"));
}

absl::StatusOr<Pieces> ReadPieces(const GgufVocabulary& from, size_t count, bool has_scores) {
  Pieces pieces;
  size_t bytes = 0;
  for (size_t id = 0; id < count; ++id) {
    const int32_t type = (*from.token_types)[id];
    if (type < 1 || type > 6)
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " has unknown type ", type));
    std::string text = Replaced((*from.tokens)[id], " ", kSpaceMark);
    const bool is_byte = type == 1 && IsBytePiece(text);
    const float score = has_scores ? (*from.scores)[id] : -static_cast<float>(id);
    bytes += text.size();
    if (absl::Status s = CheckPieceRoom(id + 1, bytes); !s.ok()) return s;
    pieces.push_back(
        {std::move(text), is_byte ? PieceType::kByte : static_cast<PieceType>(type), score});
  }
  // Drop unused tokens at the end: they only pad the embedding matrix.
  while (!pieces.empty() && pieces.back().type == PieceType::kUnused) pieces.pop_back();
  return pieces;
}

// Returns the number of pieces, at most the rows of the embedding matrix: Ollama's files list more
// tokens than the matrix has rows.
size_t PiecesOf(const GgufHeader& header) {
  size_t count = header.vocabulary.tokens->size();
  for (const TensorView& view : header.tensors) {
    if (view.name == "model.embed_tokens.weight" && !view.shape.empty())
      count = std::min(count, static_cast<size_t>(view.shape[0]));
  }
  return count;
}

}  // namespace

absl::StatusOr<Pieces> ReadGgufVocabulary(const GgufHeader& header,
                                          std::vector<std::string>* notes) {
  const GgufVocabulary& from = header.vocabulary;
  const bool has_merges = header.FieldIs("model", "gpt2");
  if (!from.tokens.has_value() || from.tokens->size() == 0)
    return absl::UnimplementedError("the field tokenizer.ggml.tokens is missing or empty");
  if (!has_merges && !header.FieldIs("model", "llama"))
    return absl::UnimplementedError("tokenizer.ggml.model must be llama or gpt2");
  const auto is_one_each = [&](const auto& numbers) {
    return numbers.has_value() && numbers->size() == from.tokens->size();
  };
  const bool is_scored = !std::holds_alternative<std::monostate>(header.Field("scores"));
  if (!is_one_each(from.token_types) || (is_scored && !is_one_each(from.scores))) {
    return absl::InvalidArgumentError("token_type and scores must have one number for each token");
  }
  const auto is_zero = [](float score) { return score == 0; };
  const bool has_scores =
      !has_merges && is_scored && !std::all_of(from.scores->begin(), from.scores->end(), is_zero);
  if (!has_merges && !has_scores)
    notes->push_back("tokenizer: no scores, so pieces are merged in the order of their ids");
  absl::StatusOr<Pieces> pieces = ReadPieces(from, PiecesOf(header), has_scores);
  if (!pieces.ok()) return pieces;
  const auto* adds_space = std::get_if<bool>(&header.Field("add_space_prefix"));
  if (IsGemmas(*pieces)) {
    TakeGemmasTypes(&*pieces, notes);
  } else if (!has_merges && adds_space != nullptr && *adds_space) {
    return absl::UnimplementedError(
        "tokenizer.ggml.add_space_prefix is true, which is not supported");
  }
  if (absl::Status s = CheckPieces(*pieces); !s.ok()) return s;
  if (!has_merges) return pieces;
  if (!from.merges.has_value())
    return absl::InvalidArgumentError("tokenizer.ggml.merges must be a list of strings");
  const auto merge_at = [&](size_t at) -> std::optional<MergeHalves> {
    const std::string_view text = (*from.merges)[at];
    return FindInvalidUtf8(text).has_value() ? std::nullopt : MergeOf(text);
  };
  const absl::Status fits = CheckMerges(from.merges->size(), merge_at, &*pieces);
  if (!fits.ok()) return fits;
  return pieces;
}

}  // namespace hearth
