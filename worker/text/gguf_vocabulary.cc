#include "worker/text/gguf_vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/text/utf8.h"
#include "worker/text/vocabulary.h"

namespace hearth {
namespace {

using Json = nlohmann::json;
using Pieces = std::vector<VocabularyPiece>;

// Of Gemma's 262,144 pieces: those of bytes, then those that texts are merged to; before and behind
// them are those that are never merged.
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
  notes->push_back(absl::StrCat(
      "tokenizer: ", mistyped, " pieces have the types that they have in Gemma 3, not the file's"));
}

// The numbers of the pieces: one each, or none at all.
bool IsOneEach(const Json& numbers, const Json& tokens) {
  if (!numbers.is_array() || numbers.size() != tokens.size()) return false;
  return std::all_of(numbers.begin(), numbers.end(), [](const Json& n) { return n.is_number(); });
}

absl::StatusOr<Pieces> ReadPieces(const GgufHeader& header, size_t count, bool has_scores) {
  const Json &tokens = header.Field("tokens"), &types = header.Field("token_type");
  Pieces pieces;
  for (size_t id = 0; id < count; ++id) {
    const int64_t type = types[id].is_number_integer() ? types[id].get<int64_t>() : 0;
    if (!tokens[id].is_string() || type < 1 || type > 6)
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " has no text, or no type"));
    std::string text = Replaced(tokens[id].get_ref<const std::string&>(), " ", kSpaceMark);
    const bool is_byte = type == 1 && IsBytePiece(text);
    const float score =
        has_scores ? header.Field("scores")[id].get<float>() : -static_cast<float>(id);
    pieces.push_back(
        {std::move(text), is_byte ? PieceType::kByte : static_cast<PieceType>(type), score});
  }
  // What fills up the rows of the embedding.
  while (!pieces.empty() && pieces.back().type == PieceType::kUnused) pieces.pop_back();
  return pieces;
}

// As many as the embedding has rows: Ollama's files have more.
size_t PiecesOf(const GgufHeader& header) {
  size_t count = header.Field("tokens").size();
  for (const TensorView& view : header.tensors) {
    if (view.name == "model.embed_tokens.weight" && !view.shape.empty())
      count = std::min(count, static_cast<size_t>(view.shape[0]));
  }
  return count;
}

}  // namespace

absl::StatusOr<Pieces> ReadGgufVocabulary(const GgufHeader& header,
                                          std::vector<std::string>* notes) {
  const Json &tokens = header.Field("tokens"), &scores = header.Field("scores");
  const Json& model = header.Field("model");
  const bool has_merges = model == "gpt2";
  if (!tokens.is_array() || tokens.empty())
    return absl::UnimplementedError("has no tokenizer.ggml.tokens");
  if (!has_merges && model != "llama")
    return absl::UnimplementedError("has a tokenizer.ggml.model that is neither llama nor gpt2");
  if (!IsOneEach(header.Field("token_type"), tokens) ||
      (!scores.is_null() && !IsOneEach(scores, tokens))) {
    return absl::InvalidArgumentError("token_type or scores are not one number for each token");
  }
  const auto is_zero = [](const Json& score) { return score == 0; };
  const bool has_scores =
      !has_merges && !scores.is_null() && !std::all_of(scores.begin(), scores.end(), is_zero);
  if (!has_merges && !has_scores)
    notes->push_back("tokenizer: no scores; pieces are merged in the order of their ids");
  absl::StatusOr<Pieces> pieces = ReadPieces(header, PiecesOf(header), has_scores);
  if (!pieces.ok()) return pieces;
  if (IsGemmas(*pieces)) {
    TakeGemmasTypes(&*pieces, notes);
  } else if (!has_merges && header.Field("add_space_prefix") == true) {
    return absl::UnimplementedError("adds a space before each text");
  }
  if (absl::Status s = CheckPieces(*pieces); !s.ok()) return s;
  if (!has_merges) return pieces;
  const Json& merges = header.Field("merges");
  const auto is_text = [](const Json& merge) {
    return merge.is_string() && !FindInvalidUtf8(merge.get_ref<const std::string&>()).has_value();
  };
  if (!merges.is_array() || !std::all_of(merges.begin(), merges.end(), is_text))
    return absl::InvalidArgumentError("tokenizer.ggml.merges is no list of texts");
  if (absl::Status s = CheckMerges(merges, *pieces); !s.ok()) return s;
  return pieces;
}

}  // namespace hearth
