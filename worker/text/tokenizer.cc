#include "worker/text/tokenizer.h"

#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include "sentencepiece_processor.h"
#include "worker/text/piece_types.h"
#include "worker/text/text_encoder.h"
#include "worker/text/utf8.h"
#include "worker/text/vocabulary.h"

namespace hearth {
namespace {

// A prompt's own "<bos>" may come on top of a text of the greatest size.
constexpr size_t kMaxEncodeBytes = kMaxTextBytes + 64;
// The most bytes encoded again to find common tokens: ordinary text needs a word or two for each
// offset, but a thousand offsets inside one word of megabytes would take minutes.
constexpr size_t kMaxRepeatedBytes = 2 * kMaxTextBytes;

// Where an offset cuts a text that was encoded.
struct Cut {
  TextEncoder::Segment begin;  // up to here nothing changes
  bool inside;                 // of a segment: what lies between is to be encoded again
};

Cut CutAt(size_t offset, size_t text_bytes, const TextEncoder& whole) {
  auto segment =
      std::lower_bound(whole.segments.begin(), whole.segments.end(), offset,
                       [](const TextEncoder::Segment& s, size_t at) { return s.begin_bytes < at; });
  // A cut between segments leaves all tokens before it as they are.
  if (segment != whole.segments.end() && segment->begin_bytes == offset) return {*segment, false};
  if (segment == whole.segments.end() && offset == text_bytes) {
    return {{text_bytes, whole.ids.size()}, false};
  }
  // The rest of the segment that is cut may join its neighbour (one space of a run of five):
  // begin one earlier.
  for (int i = 0; i < 2 && segment != whole.segments.begin(); ++i) --segment;
  return {*segment, true};
}

}  // namespace

class Tokenizer::Model {
 public:
  using Processor = sentencepiece::SentencePieceProcessor;
  Model(std::unique_ptr<Processor> loaded, const std::vector<VocabularyPiece>& pieces,
        bool plain_bpe, const TokenizerSeams& seams)
      : processor(std::move(loaded)),
        vocabulary(pieces, plain_bpe, seams.prove_cuts),
        encoder{vocabulary,
                [this](std::string_view text, std::vector<int>* ids) {
                  const auto status = processor->Encode(text, ids);
                  assert(status.ok());
                },
                seams.long_word_bytes} {}

  const std::unique_ptr<const Processor> processor;
  const Vocabulary vocabulary;
  const TextEncoder::Parts encoder;
};

std::unique_ptr<Tokenizer> Tokenizer::Parse(std::string_view model, std::string* error,
                                            const TokenizerSeams& seams) {
  auto processor = std::make_unique<Model::Processor>();
  const auto status = processor->LoadFromSerializedProto(model);
  if (!status.ok()) {
    *error = std::string("not a SentencePiece model: ") + status.message();
    return nullptr;
  }
  const auto types = ReadPieceTypes(model);
  if (!types.has_value() || types->size() != static_cast<size_t>(processor->GetPieceSize())) {
    *error = "the model's list of pieces cannot be read";
    return nullptr;
  }
  std::vector<VocabularyPiece> pieces;
  std::set<std::string_view> whole;  // SentencePiece looks for those of one type alone
  for (int id = 0; id < processor->GetPieceSize(); ++id) {
    const bool is_whole = IsNeverMerged((*types)[id]);
    if (is_whole && !whole.insert(processor->IdToPiece(id)).second) {
      *error = "piece \"" + processor->IdToPiece(id) + "\" has two types";
      return nullptr;
    }
    pieces.push_back({processor->IdToPiece(id), (*types)[id], processor->GetScore(id)});
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(
      std::make_unique<Model>(std::move(processor), pieces, IsPlainBpe(model, *types), seams)));
  if (!tokenizer->KeepsTextAsItIs()) {
    *error = "the model adds a prefix or drops white space; Gemma's does neither";
    return nullptr;
  }
  return tokenizer;
}

Tokenizer::Tokenizer(std::unique_ptr<Model> model)
    : model_(std::move(model)),
      bos_id_(model_->processor->bos_id()),
      eos_id_(model_->processor->eos_id()),
      pad_id_(model_->processor->pad_id()) {}

Tokenizer::~Tokenizer() = default;

bool Tokenizer::KeepsTextAsItIs() const {
  constexpr std::string_view kProbe = "  a b  c ";
  std::vector<int> ids;
  if (!model_->processor->Encode(kProbe, &ids).ok()) return false;
  return Decode(std::vector<int32_t>(ids.begin(), ids.end()), /*skip_special=*/false) == kProbe;
}

const std::string& Tokenizer::why_not_proven() const { return model_->vocabulary.why_no_joins(); }

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  Encoding encoding;
  EncodeWithOffsets(text, {}, EncodeRules(), &encoding);
  return std::move(encoding.ids);
}

EncodeEnd Tokenizer::EncodeWithOffsets(std::string_view text, const std::vector<size_t>& offsets,
                                       const EncodeRules& rules, Encoding* encoding) const {
  assert(text.size() <= kMaxEncodeBytes);
  assert(!FindInvalidUtf8(text).has_value());
  TextEncoder whole(model_->encoder, text, rules);
  if (!whole.Encode(0)) return whole.ended();
  std::vector<Cut> cuts;
  size_t repeated_bytes = 0;
  for (const size_t offset : offsets) {
    assert(offset <= text.size() && IsUtf8Boundary(text, offset));
    cuts.push_back(CutAt(offset, text.size(), whole));
    if (cuts.back().inside) repeated_bytes += offset - cuts.back().begin.begin_bytes;
    if (repeated_bytes > kMaxRepeatedBytes) return EncodeEnd::kTooCostly;
  }
  std::vector<uint32_t> common_tokens;
  for (size_t i = 0; i < cuts.size(); ++i) {
    size_t common = cuts[i].begin.begin_tokens;
    if (cuts[i].inside) {
      TextEncoder part(model_->encoder, text.substr(0, offsets[i]), rules);
      if (!part.Encode(cuts[i].begin.begin_bytes)) return part.ended();
      const auto same = whole.ids.begin() + static_cast<ptrdiff_t>(common);
      const auto differ = std::mismatch(part.ids.begin(), part.ids.end(), same, whole.ids.end());
      common += static_cast<size_t>(differ.first - part.ids.begin());
    }
    common_tokens.push_back(static_cast<uint32_t>(common));
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

int32_t Tokenizer::size() const { return model_->vocabulary.size(); }

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return model_->vocabulary.token(id).bytes;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < size() && model_->vocabulary.token(id).special;
}

std::optional<int32_t> Tokenizer::FindPiece(std::string_view piece) const {
  const int id = model_->processor->PieceToId(piece);
  // An unknown text gives the unknown piece's id.
  if (id < 0 || id >= size() || model_->processor->IdToPiece(id) != piece) return std::nullopt;
  return id;
}

}  // namespace hearth
