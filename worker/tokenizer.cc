#include "worker/tokenizer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <iterator>
#include <map>
#include <utility>

#include "sentencepiece_processor.h"
#include "worker/long_words.h"
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
// SentencePiece takes about 3 us a byte: as much is a few milliseconds, and enough that what it
// costs to begin is nothing beside it.
constexpr size_t kStretchBytes = 2048;
constexpr size_t kBytesBetweenQuestions = 2048;

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
  void AddLongWords();

  sentencepiece::SentencePieceProcessor processor;
  std::vector<PieceType> types;  // by id
  PieceMatcher matcher;          // the pieces that are never merged
  SpaceRuns space_runs;
  // Bytes that some piece holds right before a space: Gemma has one such piece, "> </".
  std::array<bool, 256> joins_space{};
  int unk_id = -1;
  std::optional<LongWords> long_words;  // none: the model is of a kind that LongWords does not know
  size_t longest_piece_bytes = 1;
};

// A never-merged piece, a run of spaces, or a stretch of ordinary text between such.
struct Tokenizer::Segment {
  size_t begin_bytes;
  size_t begin_tokens;
};

void Tokenizer::Model::AddLongWords() {
  std::array<int32_t, 256> byte_ids{};
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    longest_piece_bytes = std::max(longest_piece_bytes, piece.size());
    if (types[id] == PieceType::kByte) byte_ids[static_cast<uint8_t>(ByteOf(piece)[0])] = id;
  }
  long_words.emplace(byte_ids, [this](std::string_view piece) -> std::optional<LongWords::Piece> {
    const int id = processor.PieceToId(piece);
    if (id < 0 || id == unk_id) return std::nullopt;
    const PieceType type = types[id];
    if (type != PieceType::kNormal && type != PieceType::kUserDefined) return std::nullopt;
    return LongWords::Piece{id, processor.GetScore(id)};
  });
}

std::unique_ptr<Tokenizer> Tokenizer::Parse(std::string_view model, std::string* error,
                                            size_t long_word_bytes) {
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
  const bool known_kind = IsPlainBpe(model, parsed->types);
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(parsed), long_word_bytes));
  if (known_kind) tokenizer->model_->AddLongWords();
  if (!tokenizer->KeepsTextAsItIs()) {
    *error = "the model adds a prefix or drops white space; Gemma's does neither";
    return nullptr;
  }
  return tokenizer;
}

Tokenizer::Tokenizer(std::unique_ptr<Model> model, size_t long_word_bytes)
    : model_(std::move(model)), long_word_bytes_(long_word_bytes) {
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

// Appends what it makes to `ids` and `segments`; true: go on, false: ended() says why not.
class Tokenizer::Run {
 public:
  Run(const Tokenizer& tokenizer, std::string_view text, const EncodeRules& rules)
      : tokenizer_(tokenizer), model_(*tokenizer.model_), text_(text), rules_(rules) {}

  bool Segments(size_t begin);
  EncodeEnd ended() const { return ended_; }

  std::vector<int32_t> ids;
  std::vector<Segment> segments;

 private:
  bool Gap(size_t begin, size_t end);
  bool Stretch(size_t begin, size_t end);
  bool Words(size_t begin, size_t end);
  bool LongWord(size_t begin, size_t end);
  bool IsWordBegin(size_t at) const {
    return text_[at] == ' ' && !model_.joins_space[static_cast<uint8_t>(text_[at - 1])];
  }
  bool IsPlain(size_t at) const;
  bool MayGoOn(size_t at);

  const Tokenizer& tokenizer_;
  const Model& model_;
  const std::string_view text_;
  const EncodeRules& rules_;
  size_t asked_at_ = 0;
  EncodeEnd ended_ = EncodeEnd::kDone;
};

// Asks the caller for every few thousand bytes.
bool Tokenizer::Run::MayGoOn(size_t at) {
  if (ended_ != EncodeEnd::kDone) return false;
  if (ids.size() > rules_.max_tokens) {
    ended_ = EncodeEnd::kTooManyTokens;
  } else if (rules_.stopped && at >= asked_at_ + kBytesBetweenQuestions) {
    asked_at_ = at;
    if (rules_.stopped()) ended_ = EncodeEnd::kStopped;
  }
  return ended_ == EncodeEnd::kDone;
}

bool Tokenizer::Run::IsPlain(size_t at) const {
  const auto after = std::upper_bound(rules_.plain.begin(), rules_.plain.end(), at,
                                      [](size_t position, const std::pair<size_t, size_t>& range) {
                                        return position < range.first;
                                      });
  return after != rules_.plain.begin() && at < std::prev(after)->second;
}

// From `begin` to the text's end.
bool Tokenizer::Run::Segments(size_t begin) {
  asked_at_ = begin;
  size_t gap = begin;  // of what was not yet tokenized
  for (size_t at = begin; at < text_.size();) {
    const auto match = model_.matcher.Longest(text_.substr(at));
    if (!match.has_value()) {
      ++at;
      continue;
    }
    if (tokenizer_.special_[match->id] && IsPlain(at)) {
      // Its first character ends a stretch: SentencePiece would know the whole.
      if (!Gap(gap, ++at)) return false;
      gap = at;
      continue;
    }
    if (!Gap(gap, at) || !MayGoOn(at)) return false;
    segments.push_back({at, ids.size()});
    ids.push_back(match->id);
    gap = at += match->length_bytes;
  }
  return Gap(gap, text_.size()) && MayGoOn(text_.size());
}

// Between two whole pieces: runs of spaces, and stretches of ordinary text.
bool Tokenizer::Run::Gap(size_t begin, size_t end) {
  size_t stretch = begin;
  for (size_t at = begin; at < end;) {
    size_t count = 0, run_end = at, last_space = at;
    while (run_end < end) {
      const size_t length_bytes = SpaceLength(text_.substr(run_end, end - run_end));
      if (length_bytes == 0) break;
      last_space = run_end;
      run_end += length_bytes;
      ++count;
    }
    if (count >= 2 && !model_.space_runs.empty()) {
      if (!Stretch(stretch, at) || !MayGoOn(at)) return false;
      if (ids.size() + count / model_.space_runs.longest() > rules_.max_tokens) {
        ended_ = EncodeEnd::kTooManyTokens;
        return false;
      }
      segments.push_back({at, ids.size()});
      const size_t alone = model_.space_runs.Append(count, &ids);
      stretch = alone == 0 ? run_end : last_space;
    }
    at = std::max(run_end, at + 1);
  }
  return Stretch(stretch, end);
}

// A few words at a time, so that it can be stopped: no piece reaches over a word's begin.
bool Tokenizer::Run::Stretch(size_t begin, size_t end) {
  size_t words = begin;  // of those not yet tokenized
  size_t word = begin;   // of the last of them
  for (size_t at = begin + 1; at <= end; ++at) {
    if (at < end && !IsWordBegin(at)) continue;
    if (at - word > tokenizer_.long_word_bytes_ && model_.long_words.has_value()) {
      if (!Words(words, word) || !LongWord(word, at)) return false;
      words = at;
    } else if (at - words >= kStretchBytes) {
      if (!Words(words, at)) return false;
      words = at;
    }
    word = at;
  }
  return begin == end || Words(words, end);
}

bool Tokenizer::Run::Words(size_t begin, size_t end) {
  if (begin == end) return true;
  if (!MayGoOn(end)) return false;
  const std::string_view stretch = text_.substr(begin, end - begin);
  std::vector<int> encoded;
  const auto status = model_.processor.Encode(Replaced(stretch, " ", kSpaceMark), &encoded);
  assert(status.ok());
  segments.push_back({begin, ids.size()});
  // A word that no piece can join to what is before its space begins a segment of its own. A
  // literal U+2581 or an unknown character hides how long a token is: the stretch stays whole.
  size_t at = begin;
  const bool divide = stretch.find(kSpaceMark) == std::string_view::npos &&
                      std::find(encoded.begin(), encoded.end(), model_.unk_id) == encoded.end();
  for (const int id : encoded) {
    if (divide && at > begin && IsWordBegin(at)) segments.push_back({at, ids.size()});
    ids.push_back(id);
    at += divide ? tokenizer_.bytes_[id].size() : 0;
  }
  assert(!divide || at == end);
  return true;
}

bool Tokenizer::Run::LongWord(size_t begin, size_t end) {
  if (!MayGoOn(begin)) return false;
  segments.push_back({begin, ids.size()});
  const std::string word = Replaced(text_.substr(begin, end - begin), " ", kSpaceMark);
  if (ids.size() + word.size() / model_.longest_piece_bytes > rules_.max_tokens) {
    ended_ = EncodeEnd::kTooManyTokens;
  } else if (!model_.long_words->Encode(word, rules_.stopped, &ids)) {
    ended_ = EncodeEnd::kStopped;
  }
  return MayGoOn(end);
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  Encoding encoding;
  EncodeWithOffsets(text, {}, EncodeRules(), &encoding);
  return std::move(encoding.ids);
}

EncodeEnd Tokenizer::EncodeWithOffsets(std::string_view text, const std::vector<size_t>& offsets,
                                       const EncodeRules& rules, Encoding* encoding) const {
  assert(text.size() <= kMaxEncodeBytes);
  assert(!FindInvalidUtf8(text).has_value());
  Run whole(*this, text, rules);
  if (!whole.Segments(0)) return whole.ended();
  std::vector<uint32_t> common_tokens;
  size_t repeated_bytes = 0;
  for (const size_t offset : offsets) {
    assert(offset <= text.size() && IsUtf8Boundary(text, offset));
    auto segment = std::lower_bound(whole.segments.begin(), whole.segments.end(), offset,
                                    [](const Segment& s, size_t at) { return s.begin_bytes < at; });
    const bool past_all = segment == whole.segments.end();
    // A cut between segments leaves all tokens before it as they are.
    if (past_all ? offset == text.size() : segment->begin_bytes == offset) {
      common_tokens.push_back(
          static_cast<uint32_t>(past_all ? whole.ids.size() : segment->begin_tokens));
      continue;
    }
    // The rest of the segment that is cut may join its neighbour (one space of a run of five):
    // begin one earlier.
    for (int i = 0; i < 2 && segment != whole.segments.begin(); ++i) --segment;
    repeated_bytes += offset - segment->begin_bytes;
    if (repeated_bytes > kMaxRepeatedBytes) return EncodeEnd::kTooCostly;
    Run part(*this, text.substr(0, offset), rules);
    if (!part.Segments(segment->begin_bytes)) return part.ended();
    const auto same = whole.ids.begin() + static_cast<ptrdiff_t>(segment->begin_tokens);
    const auto differ = std::mismatch(part.ids.begin(), part.ids.end(), same, whole.ids.end());
    common_tokens.push_back(
        static_cast<uint32_t>(segment->begin_tokens + (differ.first - part.ids.begin())));
  }
  encoding->ids = std::move(whole.ids);
  encoding->common_tokens = std::move(common_tokens);
  return EncodeEnd::kDone;
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
