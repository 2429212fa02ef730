#include "worker/tokenizer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <iterator>
#include <map>
#include <utility>

#include "sentencepiece_processor.h"
#include "worker/piece_matcher.h"
#include "worker/piece_types.h"
#include "worker/space_runs.h"
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
// What finding the common tokens may cost beside the encoding itself: ordinary text needs a word or
// two for each offset, a thousand offsets inside one word of megabytes would take minutes.
constexpr size_t kMaxRepeatedBytes = 2 * kMaxTextBytes;

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

// How many bytes the space at the front takes, U+2581 standing for one; 0 when there is none.
size_t SpaceLength(std::string_view text) {
  if (!text.empty() && text[0] == ' ') return 1;
  return text.substr(0, kSpaceMark.size()) == kSpaceMark ? kSpaceMark.size() : 0;
}

bool IsRunOfSpaces(const std::string& text) {
  return text.size() >= 2 && text.find_first_not_of(' ') == std::string::npos;
}

void NoteJoins(const std::string& piece, std::array<bool, 256>* joins_space) {
  for (size_t at = 1; at < piece.size(); ++at) {
    if (piece[at] == ' ') (*joins_space)[static_cast<uint8_t>(piece[at - 1])] = true;
  }
}

}  // namespace

class Tokenizer::Model {
 public:
  sentencepiece::SentencePieceProcessor processor;
  std::vector<PieceType> types;  // by id
  PieceMatcher matcher;          // the pieces that are never merged
  SpaceRuns space_runs;
  // Bytes that some piece holds right before a space: Gemma has one such piece, "> </".
  std::array<bool, 256> joins_space{};
  int unk_id = -1;
};

// A never-merged piece, a run of spaces, or a stretch of ordinary text between such.
struct Tokenizer::Segment {
  size_t begin_bytes;
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
  model_->unk_id = processor.unk_id();
  std::vector<PieceMatcher::Piece> whole;
  std::map<size_t, int32_t> runs;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    const PieceType type = model_->types[id];
    const bool control = type == PieceType::kControl || type == PieceType::kUnknown;
    const bool marker =
        std::find(std::begin(kMarkers), std::end(kMarkers), piece) != std::end(kMarkers);
    bytes_.push_back(type == PieceType::kByte ? ByteOf(piece) : Replaced(piece, kSpaceMark, " "));
    special_.push_back(control || marker);
    if (control || type == PieceType::kUserDefined) whole.push_back({piece, id});
    if (type == PieceType::kNormal) NoteJoins(bytes_.back(), &model_->joins_space);
    if (type == PieceType::kUserDefined && IsRunOfSpaces(bytes_.back())) {
      runs.emplace(bytes_.back().size(), id);
    }
  }
  model_->space_runs = SpaceRuns(std::move(runs));
  model_->matcher = PieceMatcher(std::move(whole));
}

Tokenizer::~Tokenizer() = default;

bool Tokenizer::KeepsTextAsItIs() const {
  constexpr std::string_view kProbe = "  a b  c ";
  std::vector<int> ids;
  if (!model_->processor.Encode(kProbe, &ids).ok()) return false;
  return Decode(std::vector<int32_t>(ids.begin(), ids.end()), /*skip_special=*/false) == kProbe;
}

void Tokenizer::EncodeSegments(std::string_view text, std::vector<int32_t>* ids,
                               std::vector<Segment>* segments) const {
  size_t gap = 0;  // begin of what was not yet tokenized
  for (size_t at = 0; at < text.size();) {
    const auto match = model_->matcher.Longest(text.substr(at));
    if (!match.has_value()) {
      ++at;
      continue;
    }
    EncodeGap(text, gap, at, ids, segments);
    segments->push_back({at, ids->size()});
    ids->push_back(match->id);
    gap = at += match->length_bytes;
  }
  EncodeGap(text, gap, text.size(), ids, segments);
}

// Between two whole pieces: runs of spaces, and stretches of ordinary text.
void Tokenizer::EncodeGap(std::string_view text, size_t begin, size_t end,
                          std::vector<int32_t>* ids, std::vector<Segment>* segments) const {
  size_t stretch = begin;
  for (size_t at = begin; at < end;) {
    size_t count = 0, run_end = at, last_space = at;
    while (run_end < end) {
      const size_t length_bytes = SpaceLength(text.substr(run_end, end - run_end));
      if (length_bytes == 0) break;
      last_space = run_end;
      run_end += length_bytes;
      ++count;
    }
    if (count >= 2 && !model_->space_runs.empty()) {
      EncodeStretch(text, stretch, at, ids, segments);
      segments->push_back({at, ids->size()});
      const size_t alone = model_->space_runs.Append(count, ids);
      stretch = alone == 0 ? run_end : last_space;
    }
    at = std::max(run_end, at + 1);
  }
  EncodeStretch(text, stretch, end, ids, segments);
}

void Tokenizer::EncodeStretch(std::string_view text, size_t begin, size_t end,
                              std::vector<int32_t>* ids, std::vector<Segment>* segments) const {
  if (begin == end) return;
  const std::string_view stretch = text.substr(begin, end - begin);
  std::vector<int> encoded;
  const auto status = model_->processor.Encode(Replaced(stretch, " ", kSpaceMark), &encoded);
  assert(status.ok());
  segments->push_back({begin, ids->size()});
  // A word that no piece can join to what is before its space begins a segment of its own. A
  // literal U+2581 or an unknown character hides how long a token is: the stretch stays whole.
  size_t at = begin;
  const bool divide = stretch.find(kSpaceMark) == std::string_view::npos &&
                      std::find(encoded.begin(), encoded.end(), model_->unk_id) == encoded.end();
  for (const int id : encoded) {
    if (divide && at > begin && text[at] == ' ' &&
        !model_->joins_space[static_cast<uint8_t>(text[at - 1])]) {
      segments->push_back({at, ids->size()});
    }
    ids->push_back(id);
    at += divide ? bytes_[id].size() : 0;
  }
  assert(!divide || at == end);
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  return EncodeWithOffsets(text, {})->ids;
}

std::optional<Encoding> Tokenizer::EncodeWithOffsets(std::string_view text,
                                                     const std::vector<size_t>& offsets) const {
  assert(text.size() <= kMaxEncodeBytes);
  assert(!FindInvalidUtf8(text).has_value());
  Encoding encoding;
  std::vector<Segment> segments;
  EncodeSegments(text, &encoding.ids, &segments);
  size_t repeated_bytes = 0;
  for (const size_t offset : offsets) {
    assert(offset <= text.size() && IsUtf8Boundary(text, offset));
    auto segment = std::lower_bound(segments.begin(), segments.end(), offset,
                                    [](const Segment& s, size_t at) { return s.begin_bytes < at; });
    // A cut between segments leaves all tokens before it as they are.
    if (segment == segments.end() ? offset == text.size() : segment->begin_bytes == offset) {
      encoding.common_tokens.push_back(static_cast<uint32_t>(
          segment == segments.end() ? encoding.ids.size() : segment->begin_tokens));
      continue;
    }
    // The rest of the segment that is cut may join its neighbour (one space of a run of five):
    // begin one earlier.
    for (int i = 0; i < 2 && segment != segments.begin(); ++i) --segment;
    const std::string_view rest = text.substr(0, offset).substr(segment->begin_bytes);
    repeated_bytes += rest.size();
    if (repeated_bytes > kMaxRepeatedBytes) return std::nullopt;
    std::vector<int32_t> tail;
    std::vector<Segment> ignored;
    EncodeSegments(rest, &tail, &ignored);
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
