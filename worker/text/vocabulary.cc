#include "worker/text/vocabulary.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <map>
#include <utility>

#include "proto/utf8.h"

namespace hearth {

namespace {

// Merges neighbouring parts of lengths `left` and `right`, from left to right.
void MergeNeighbours(size_t left, size_t right, std::vector<size_t>* parts) {
  size_t kept = 0;
  for (size_t i = 0; i < parts->size(); ++i) {
    if (i + 1 < parts->size() && (*parts)[i] == left && (*parts)[i + 1] == right) {
      (*parts)[kept++] = left + right;
      ++i;
    } else {
      (*parts)[kept++] = (*parts)[i];
    }
  }
  parts->resize(kept);
}

}  // namespace

SpaceRuns::SpaceRuns(std::map<size_t, int32_t> pieces) : id_by_length_(std::move(pieces)) {
  for (const auto& [length, id] : id_by_length_) {
    assert(length >= 2);
    lengths_by_id_.push_back(length);
  }
  std::sort(lengths_by_id_.begin(), lengths_by_id_.end(),
            [this](size_t a, size_t b) { return id_by_length_.at(a) < id_by_length_.at(b); });
}

// A merge is ranked by the id of the new piece, then by the longer left part. Ids grow with the
// length of the pieces, so a merge never enables a merge of a lower rank: it suffices to try each
// merge once, in order. While lengths double, the number of parts halves: about 44 steps per space
// over all 31 lengths.
size_t SpaceRuns::Append(size_t count, std::vector<int32_t>* ids) const {
  assert(count >= 2);
  std::vector<size_t> parts(count, 1);
  for (const size_t length : lengths_by_id_) {
    for (size_t left = length - 1; left >= 1; --left) {
      MergeNeighbours(left, length - left, &parts);
    }
  }
  size_t alone = 0;
  for (const size_t length : parts) {
    if (length == 1) {
      ++alone;
    } else {
      assert(alone == 0);
      ids->push_back(id_by_length_.at(length));
    }
  }
  assert(alone <= 1);
  return alone;
}

PieceMatcher::PieceMatcher(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.text < b.text; });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    assert(!pieces_[i].text.empty());
    assert(i == 0 || pieces_[i - 1].text != pieces_[i].text);
    starts_[static_cast<uint8_t>(pieces_[i].text[0])] = true;
  }
}

// In sorted order, a piece that begins the text comes before or at the text, and after shorter
// pieces that begin it. So check the last piece that is not after the text. If it begins the text,
// it is the longest. Otherwise no matching piece is longer than the beginning that both have in
// common, so search again with that beginning.
std::optional<PieceMatcher::Match> PieceMatcher::Longest(std::string_view text) const {
  if (text.empty() || !Starts(text[0])) return std::nullopt;
  for (auto end = pieces_.end(); !text.empty();) {
    end = std::upper_bound(pieces_.begin(), end, text,
                           [](std::string_view wanted, const Piece& p) { return wanted < p.text; });
    if (end == pieces_.begin()) break;
    const Piece& last = *std::prev(end);
    const size_t most = std::min(last.text.size(), text.size());
    const size_t common =
        std::mismatch(text.begin(), text.begin() + most, last.text.begin()).first - text.begin();
    if (common == last.text.size()) return Match{last.id, common};
    text = text.substr(0, common);
  }
  return std::nullopt;
}

namespace {

// Pieces that count as special although the file lists them as user-defined.
constexpr std::string_view kMarkers[] = {"<start_of_turn>", "<end_of_turn>", "<start_of_image>",
                                         "<end_of_image>", "<image_soft_token>"};

// Returns the byte of a byte piece: "<0x41>" -> 'A'.
char ByteOf(std::string_view piece) {
  return static_cast<char>(std::stoi(std::string(piece.substr(3, 2)), nullptr, 16));
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

Vocabulary::Vocabulary(const std::vector<VocabularyPiece>& pieces) : side_by_side_(kPairBits) {
  AddTokens(pieces);
}

const Vocabulary::Made* Vocabulary::FindMade(std::string_view text) const {
  if (text.size() > longest_made_bytes_) return nullptr;
  const auto found = made_.find(text);
  return found == made_.end() ? nullptr : &found->second;
}

void Vocabulary::AppendIds(std::string_view text, std::vector<int32_t>* ids) const {
  if (const Made* made = FindMade(text)) {
    ids->push_back(made->id);
  } else {
    for (const char byte : text) ids->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  }
}

std::optional<PieceMatcher::Match> Vocabulary::LongestWhole(bool normalized,
                                                            std::string_view text) const {
  if (!normalized) return matcher_.Longest(text);
  std::string with_spaces;
  std::string_view window = text.substr(0, longest_normalized_bytes_);
  if (window.find(kSpaceMark) != window.npos)
    window = with_spaces = Replaced(window, kSpaceMark, " ");
  auto match = normalized_.Longest(window);
  if (!match.has_value()) return match;
  size_t bytes = 0;  // length of the match in `text`
  for (size_t i = 0; i < match->length_bytes; ++i)
    bytes += text.substr(bytes, kSpaceMark.size()) == kSpaceMark ? kSpaceMark.size() : 1;
  match->length_bytes = bytes;
  return match;
}

std::optional<int32_t> Vocabulary::Find(std::string_view piece) const {
  for (const bool normalized : {false, true}) {
    if (const auto whole = LongestWhole(normalized, piece);
        whole.has_value() && whole->length_bytes == piece.size()) {
      return whole->id;
    }
  }
  if (const Made* made = FindMade(Replaced(piece, kSpaceMark, " "))) return made->id;
  if (!IsBytePiece(piece)) return std::nullopt;
  return byte_ids_[static_cast<uint8_t>(ByteOf(piece))];
}

void Vocabulary::AddTokens(const std::vector<VocabularyPiece>& pieces) {
  std::vector<PieceMatcher::Piece> whole, normalized;
  std::map<size_t, int32_t> runs;
  tokens_.resize(pieces.size());
  made_.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [text, type, score, is_normalized] = pieces[i];
    const auto id = static_cast<int32_t>(i);
    const bool control = type == PieceType::kControl || type == PieceType::kUnknown;
    Token& token = tokens_[i];
    token.bytes =
        type == PieceType::kByte ? std::string(1, ByteOf(text)) : Replaced(text, kSpaceMark, " ");
    token.special = control || IsMarker(text);
    if (IsNeverMerged(type) && is_normalized) {
      normalized.push_back({token.bytes, id});
      longest_normalized_bytes_ =
          std::max(longest_normalized_bytes_, token.bytes.size() * kSpaceMark.size());
    } else if (IsNeverMerged(type)) {
      whole.push_back({std::string(text), id});
    }
    if (type == PieceType::kUserDefined && !is_normalized && IsRunOfSpaces(token.bytes)) {
      runs.emplace(token.bytes.size(), id);
    }
    if (MayBecomeText(type)) AddMade(token.bytes, id, score);
    if (type == PieceType::kByte) byte_ids_[static_cast<uint8_t>(token.bytes[0])] = id;
  }
  space_runs_ = SpaceRuns(std::move(runs));
  matcher_ = PieceMatcher(std::move(whole));
  normalized_ = PieceMatcher(std::move(normalized));
}

void Vocabulary::AddMade(std::string_view text, int32_t id, float score) {
  const bool is_new = made_.emplace(text, Made{id, score}).second;
  assert(is_new);
  longest_made_bytes_ = std::max(longest_made_bytes_, text.size());
  for (size_t at = 0; at < text.size();) {
    const Character left = CharacterAt(text, at);
    at += left.bytes;
    if (at < text.size()) side_by_side_[PairOf(left.code, CharacterAt(text, at).code)] = true;
  }
}

}  // namespace hearth
