#include "worker/text/vocabulary.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

namespace hearth {
namespace {

// Published as special tokens although their pieces are user-defined ones.
constexpr std::string_view kMarkers[] = {"<start_of_turn>", "<end_of_turn>", "<start_of_image>",
                                         "<end_of_image>", "<image_soft_token>"};

// "<0x41>" -> 'A'. The piece's form was checked by SentencePiece when it loaded the model.
std::string ByteOf(std::string_view piece) {
  assert(piece.size() == 6);
  return std::string(1, static_cast<char>(std::stoi(std::string(piece.substr(3, 2)), nullptr, 16)));
}

bool IsMarker(std::string_view piece) {
  return std::find(std::begin(kMarkers), std::end(kMarkers), piece) != std::end(kMarkers);
}

bool IsRunOfSpaces(const std::string& text) {
  return text.size() >= 2 && text.find_first_not_of(' ') == std::string::npos;
}

}  // namespace

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != std::string_view::npos; at = hit + from.size()) {
    out.append(text, at, hit - at).append(to);
  }
  return out.append(text, at, std::string_view::npos);
}

Vocabulary::Vocabulary(const std::vector<VocabularyPiece>& pieces, bool plain_bpe, bool prove) {
  AddTokens(pieces);
  const bool scored = std::none_of(pieces.begin(), pieces.end(), [](const VocabularyPiece& p) {
    return MayBecomeText(p.type) && std::isnan(p.score);
  });
  if (plain_bpe && scored) AddMerger(pieces);
  if (prove) joins_ = PieceJoins::Prove(pieces, plain_bpe, &why_no_joins_);
  assert(merger_.has_value() || !joins_.has_value());
  if (joins_.has_value()) NoteMadeOfSelf();
}

void Vocabulary::AddTokens(const std::vector<VocabularyPiece>& pieces) {
  std::vector<PieceMatcher::Piece> whole;
  std::map<size_t, int32_t> runs;
  tokens_.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [text, type, score] = pieces[i];
    const auto id = static_cast<int32_t>(i);
    const bool control = type == PieceType::kControl || type == PieceType::kUnknown;
    Token& token = tokens_[i];
    token.bytes = type == PieceType::kByte ? ByteOf(text) : Replaced(text, kSpaceMark, " ");
    token.special = control || IsMarker(text);
    token.unknown = type == PieceType::kUnknown;
    if (IsNeverMerged(type)) whole.push_back({std::string(text), id});
    if (type == PieceType::kUserDefined && IsRunOfSpaces(token.bytes)) {
      runs.emplace(token.bytes.size(), id);
    }
    for (size_t at = 1; MayBecomeText(type) && at < token.bytes.size(); ++at) {
      if (token.bytes[at] == ' ') joins_space_[static_cast<uint8_t>(token.bytes[at - 1])] = true;
    }
  }
  space_runs_ = SpaceRuns(std::move(runs));
  matcher_ = PieceMatcher(std::move(whole));
}

void Vocabulary::AddMerger(const std::vector<VocabularyPiece>& pieces) {
  std::array<int32_t, 256> byte_ids{};
  table_.emplace(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& bytes = tokens_[i].bytes;
    if (pieces[i].type == PieceType::kByte) byte_ids[static_cast<uint8_t>(bytes[0])] = id;
    // SentencePiece looks for no space: it makes U+2581 of each before.
    const bool found =
        MayBecomeText(pieces[i].type) && pieces[i].text.find(' ') == std::string_view::npos;
    if (found) table_->Add(bytes, id, pieces[i].score);
  }
  merger_.emplace(&*table_, byte_ids);
}

// Most words of most texts are pieces: they need no merging then.
void Vocabulary::NoteMadeOfSelf() {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& bytes = tokens_[i].bytes;
    const PieceTable::Piece* piece = table_->Find(bytes);
    if (piece == nullptr || piece->id != i) continue;
    ids.clear();
    merger_->Encode(bytes, nullptr, &ids);
    if (ids.size() == 1 && ids[0] == static_cast<int32_t>(i)) table_->NoteMadeOfSelf(bytes);
  }
}

}  // namespace hearth
