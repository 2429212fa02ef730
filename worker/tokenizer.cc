#include "worker/tokenizer.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "sentencepiece_processor.h"
#include "worker/piece_matcher.h"
#include "worker/piece_types.h"
#include "worker/utf8.h"

namespace hearth {
namespace {

// SentencePiece writes a space as U+2581 in its pieces.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
// Published as special tokens although their pieces are user-defined ones.
constexpr std::string_view kMarkers[] = {"<start_of_turn>", "<end_of_turn>", "<start_of_image>",
                                         "<end_of_image>", "<image_soft_token>"};
// A prompt's own "<bos>" may come on top of a text of the greatest size.
constexpr size_t kMaxEncodeBytes = kMaxTextBytes + 64;

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != std::string_view::npos; at = hit + from.size()) {
    out.append(text, at, hit - at).append(to);
  }
  return out.append(text, at, std::string_view::npos);
}

// "<0x41>" -> 'A'. The piece's form was checked by SentencePiece when it loaded the model.
std::string ByteOf(const std::string& piece) {
  assert(piece.size() == 6);
  return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
}

}  // namespace

class Tokenizer::Model {
 public:
  sentencepiece::SentencePieceProcessor processor;
  std::vector<PieceType> types;  // by id
  PieceMatcher matcher;          // the pieces that are never merged, as SentencePiece writes them
};

// A never-merged piece, or what lies between two of them.
struct Tokenizer::Segment {
  size_t begin_bytes;  // in the normalized text
  size_t begin_tokens;
};

std::unique_ptr<Tokenizer> Tokenizer::Parse(std::string_view model, std::string* error) {
  auto parsed = std::make_unique<Model>();
  const auto status = parsed->processor.LoadFromSerializedProto(model);
  if (!status.ok()) {
    *error = std::string("not a SentencePiece model: ") + status.message();
    return nullptr;
  }
  auto types = ReadPieceTypes(model);
  if (!types.has_value() ||
      types->size() != static_cast<size_t>(parsed->processor.GetPieceSize())) {
    *error = "the model's list of pieces cannot be read";
    return nullptr;
  }
  parsed->types = *std::move(types);
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(parsed)));
  if (!tokenizer->KeepsTextAsItIs()) {
    *error = "the model adds a prefix or drops white space; Gemma's does neither";
    return nullptr;
  }
  return tokenizer;
}

Tokenizer::Tokenizer(std::unique_ptr<Model> model) : model_(std::move(model)) {
  const auto& processor = model_->processor;
  bos_id_ = processor.bos_id();
  eos_id_ = processor.eos_id();
  pad_id_ = processor.pad_id();
  std::vector<PieceMatcher::Piece> whole;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    const PieceType type = model_->types[id];
    const bool control = type == PieceType::kControl || type == PieceType::kUnknown;
    const bool marker = std::find(std::begin(kMarkers), std::end(kMarkers), piece) !=
                        std::end(kMarkers);
    bytes_.push_back(type == PieceType::kByte ? ByteOf(piece) : Replaced(piece, kSpaceMark, " "));
    special_.push_back(control || marker);
    if (control || type == PieceType::kUserDefined) whole.push_back({piece, id});
  }
  model_->matcher = PieceMatcher(std::move(whole));
}

Tokenizer::~Tokenizer() = default;

bool Tokenizer::KeepsTextAsItIs() const {
  constexpr std::string_view kProbe = "  a b  c ";
  std::vector<int> ids;
  if (!model_->processor.Encode(kProbe, &ids).ok()) return false;
  return Decode(std::vector<int32_t>(ids.begin(), ids.end()), /*skip_special=*/false) == kProbe;
}

void Tokenizer::EncodeSegments(std::string_view normalized, std::vector<int32_t>* ids,
                               std::vector<Segment>* segments) const {
  std::vector<int> between;
  size_t gap = 0;  // begin of what was not yet tokenized
  const auto close_gap = [&](size_t end) {
    if (gap == end) return;
    segments->push_back({gap, ids->size()});
    const auto status = model_->processor.Encode(normalized.substr(gap, end - gap), &between);
    assert(status.ok());
    ids->insert(ids->end(), between.begin(), between.end());
  };
  for (size_t at = 0; at < normalized.size();) {
    const auto match = model_->matcher.Longest(normalized.substr(at));
    if (!match.has_value()) {
      ++at;
      continue;
    }
    close_gap(at);
    segments->push_back({at, ids->size()});
    ids->push_back(match->id);
    gap = at += match->length_bytes;
  }
  close_gap(normalized.size());
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  return EncodeWithOffsets(text, {}).ids;
}

Encoding Tokenizer::EncodeWithOffsets(std::string_view text,
                                      const std::vector<size_t>& offsets) const {
  assert(text.size() <= kMaxEncodeBytes);
  assert(!FindInvalidUtf8(text).has_value());
  const std::string normalized = Replaced(text, " ", kSpaceMark);
  Encoding encoding;
  std::vector<Segment> segments;
  EncodeSegments(normalized, &encoding.ids, &segments);
  size_t counted = 0, spaces = 0;
  for (const size_t offset : offsets) {
    assert(offset >= counted && offset <= text.size() && IsUtf8Boundary(text, offset));
    spaces += std::count(text.begin() + counted, text.begin() + offset, ' ');
    counted = offset;
    const size_t end = offset + spaces * (kSpaceMark.size() - 1);
    // The last segment that begins at or before the offset: all tokens before it are common.
    auto segment = std::upper_bound(segments.begin(), segments.end(), end,
                                    [](size_t at, const Segment& s) { return at < s.begin_bytes; });
    if (segment == segments.begin()) {  // an empty text
      encoding.common_tokens.push_back(0);
      continue;
    }
    --segment;
    std::vector<int32_t> tail;
    std::vector<Segment> ignored;
    EncodeSegments(std::string_view(normalized).substr(0, end).substr(segment->begin_bytes), &tail,
                   &ignored);
    const auto whole = encoding.ids.begin() + static_cast<ptrdiff_t>(segment->begin_tokens);
    const auto differ = std::mismatch(tail.begin(), tail.end(), whole, encoding.ids.end()).first;
    encoding.common_tokens.push_back(
        static_cast<uint32_t>(segment->begin_tokens + (differ - tail.begin())));
  }
  return encoding;
}

std::string Tokenizer::Decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string text;
  Utf8Repairer repairer;
  for (const int32_t id : ids) {
    if (!(skip_special && IsSpecial(id))) repairer.Append(TokenBytes(id), &text);
  }
  repairer.Finish(&text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(bytes_[id]) : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < size() && special_[id]; }

std::optional<int32_t> Tokenizer::FindPiece(std::string_view piece) const {
  const int id = model_->processor.PieceToId(piece);
  // An unknown text gives the unknown piece's id.
  if (id < 0 || id >= size() || model_->processor.IdToPiece(id) != piece) return std::nullopt;
  return id;
}

}  // namespace hearth
