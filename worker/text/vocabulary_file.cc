#include "worker/text/vocabulary_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/utf8.h"
#include "worker/model/model_json.h"
#include "worker/model/text_list.h"

namespace hearth {
namespace {

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

struct Field {
  uint64_t number = 0;
  uint64_t varint = 0;     // value of a varint field
  std::string_view bytes;  // bytes of a length-delimited field
};

// Reads the fields of a protobuf message. Next() returns false at the end, or after an error; ok()
// is false only after an error.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}
  bool ok() const { return ok_; }

  bool Next(Field* field) {
    uint64_t tag = 0, length = 0;
    if (!ok_ || rest_.empty() || !Varint(&tag)) return false;
    *field = Field{tag >> 3, 0, {}};
    switch (tag & 7) {
      case kVarint:
        return Varint(&field->varint);
      case kFixed64:
        return Take(8, &field->bytes);
      case kFixed32:
        return Take(4, &field->bytes);
      case kLengthDelimited:
        return Varint(&length) && Take(length, &field->bytes);
      default:
        return ok_ = false;
    }
  }

 private:
  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      *value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return true;
    }
    return ok_ = false;
  }
  bool Take(uint64_t length, std::string_view* bytes) {
    if (length > rest_.size()) return ok_ = false;
    *bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_;
  bool ok_ = true;
};

constexpr char kOddMerge[] = "a merge must be a pair of strings";

using Pieces = std::vector<VocabularyPiece>;
using Json = nlohmann::json;

template <typename... Parts>
absl::Status Broken(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status Other(const Parts&... parts) {
  return absl::UnimplementedError(absl::StrCat(parts...));
}

// --- tokenizer.model ---

// Field numbers of ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
constexpr uint64_t kPieces = 1, kTrainer = 2, kNormalizer = 3;
constexpr uint64_t kText = 1, kScore = 2, kType = 3;
constexpr uint64_t kModelType = 3, kSpaceAsSuffix = 24, kByteFallback = 35;
constexpr uint64_t kCharsmap = 2, kDummyPrefix = 3, kRemoveSpaces = 4, kEscapeSpaces = 5;
constexpr uint64_t kBpe = 2;

std::optional<VocabularyPiece> ReadPiece(std::string_view message) {
  FieldReader reader(message);
  VocabularyPiece piece;
  uint64_t type = static_cast<uint64_t>(PieceType::kNormal);
  for (Field field; reader.Next(&field);) {
    if (field.number == kText) piece.text = std::string(field.bytes);
    if (field.number == kScore && field.bytes.size() == sizeof(piece.score))
      std::memcpy(&piece.score, field.bytes.data(), sizeof(piece.score));
    if (field.number == kType) type = field.varint;
  }
  const bool is_known = type >= static_cast<uint64_t>(PieceType::kNormal) &&
                        type <= static_cast<uint64_t>(PieceType::kByte);
  if (!reader.ok() || !is_known) return std::nullopt;
  piece.type = static_cast<PieceType>(type);
  return piece;
}

// The model's settings. A later field overrides an earlier one, as in protobuf.
struct Settings {
  bool is_bpe = false, has_bytes = false, has_suffix = false;
  bool has_charsmap = false, adds_prefix = true, removes_spaces = true, escapes_spaces = true;
};

bool ReadTrainer(std::string_view message, Settings* settings) {
  FieldReader reader(message);
  for (Field field; reader.Next(&field);) {
    if (field.number == kModelType) settings->is_bpe = field.varint == kBpe;
    if (field.number == kByteFallback) settings->has_bytes = field.varint != 0;
    if (field.number == kSpaceAsSuffix) settings->has_suffix = field.varint != 0;
  }
  return reader.ok();
}

bool ReadNormalizer(std::string_view message, Settings* settings) {
  FieldReader reader(message);
  for (Field field; reader.Next(&field);) {
    if (field.number == kCharsmap) settings->has_charsmap = !field.bytes.empty();
    if (field.number == kDummyPrefix) settings->adds_prefix = field.varint != 0;
    if (field.number == kRemoveSpaces) settings->removes_spaces = field.varint != 0;
    if (field.number == kEscapeSpaces) settings->escapes_spaces = field.varint != 0;
  }
  return reader.ok();
}

absl::Status CheckSettings(const Settings& settings) {
  if (settings.has_charsmap)
    return Other("the normalizer changes the text before tokenization, which is not supported");
  if (settings.adds_prefix || settings.removes_spaces || !settings.escapes_spaces)
    return Other("the normalizer adds a prefix or drops white space, which is not supported");
  if (!settings.is_bpe || settings.has_suffix) return Other("the tokenizer must be plain BPE");
  if (!settings.has_bytes) return Other("the tokenizer must have byte_fallback set");
  return absl::OkStatus();
}

// --- tokenizer.json ---

// Parses tokenizer.json. Keeps the vocabulary and the merges in compact lists; both are empty in
// the JSON value. A value of the wrong type leaves a piece without an id, or sets has_odd_merge().
class TokenizerJson : public ModelJsonBuilder {
 public:
  static constexpr uint32_t kNoId = UINT32_MAX;

  const TextList& texts() const { return texts_; }
  const std::vector<uint32_t>& ids() const { return ids_; }  // parallel to texts()
  size_t merges() const { return halves_.size() / 2; }
  MergeHalves merge(size_t at) const { return {halves_[2 * at], halves_[2 * at + 1]}; }
  bool has_odd_merge() const { return has_odd_merge_; }

  bool null() override { return part_ == kOther ? ModelJsonBuilder::null() : Odd(); }
  bool boolean(bool value) override {
    return part_ == kOther ? ModelJsonBuilder::boolean(value) : Odd();
  }
  bool number_integer(number_integer_t value) override {
    return part_ == kOther ? ModelJsonBuilder::number_integer(value) : Odd();
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return part_ == kOther ? ModelJsonBuilder::number_float(value, text) : Odd();
  }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool key(string_t& name) override;
  bool start_object(size_t size) override;
  bool start_array(size_t size) override;
  bool end_object() override { return Leave() ? ModelJsonBuilder::end_object() : true; }
  bool end_array() override { return Leave() ? ModelJsonBuilder::end_array() : true; }

 private:
  enum Part { kOther, kVocabulary, kMerges };

  void Begin(Part part) { part_ = part, levels_ = 1; }
  bool Enter();
  bool Leave();
  bool Odd();
  bool AddHalf(std::string_view half);

  Part part_ = kOther;  // which part of the file contains the next value
  size_t levels_ = 0;   // nesting depth within the part
  size_t found_ = 0;    // number of texts read of the current merge, if the merge is a list
  size_t bytes_ = 0;    // size of all texts
  TextList texts_;
  std::vector<uint32_t> ids_;
  TextList halves_;  // two per merge, unless a merge is odd
  bool has_odd_merge_ = false;
};

bool TokenizerJson::number_unsigned(number_unsigned_t value) {
  if (part_ == kOther) return ModelJsonBuilder::number_unsigned(value);
  if (part_ == kMerges || levels_ > 1 || value >= kNoId) return Odd();
  ids_.back() = static_cast<uint32_t>(value);
  return true;
}

bool TokenizerJson::key(string_t& name) {
  if (part_ == kOther) return ModelJsonBuilder::key(name);
  if (part_ == kMerges || levels_ > 1) return Odd();
  bytes_ += name.size();
  const absl::Status room = CheckPieceRoom(ids_.size() + 1, bytes_);
  if (!room.ok()) return Fail(std::string(room.message()));
  texts_.Add(name);
  ids_.push_back(kNoId);
  return true;
}

// Reads a merge: ["a", "b"], or "a b" in older files.
bool TokenizerJson::string(string_t& value) {
  if (part_ == kOther) return ModelJsonBuilder::string(value);
  if (part_ == kVocabulary || levels_ > 2) return Odd();
  if (levels_ == 2) return ++found_ <= 2 ? AddHalf(value) : Odd();
  const std::optional<MergeHalves> merge = MergeOf(value);
  return merge.has_value() ? AddHalf(merge->first) && AddHalf(merge->second) : Odd();
}

bool TokenizerJson::start_object(size_t size) {
  if (part_ != kOther) return Odd() && Enter();
  if (IsAt({"model", "vocab"})) Begin(kVocabulary);
  return ModelJsonBuilder::start_object(size);
}

bool TokenizerJson::start_array(size_t size) {
  if (part_ != kOther) return Enter();
  if (IsAt({"model", "merges"})) Begin(kMerges);
  return ModelJsonBuilder::start_array(size);
}

// Enters a list or object inside the vocabulary or the merges. Only the list of one merge is
// allowed there.
bool TokenizerJson::Enter() {
  if (levels_ == kMaxJsonLevels) return Fail("is nested too deeply");
  found_ = 0;
  return ++levels_ == 2 || Odd();
}

// Returns whether the JSON value is needed: it ends the vocabulary or the merges, or lies outside
// both.
bool TokenizerJson::Leave() {
  if (part_ == kOther) return true;
  if (levels_ == 2 && found_ != 2) Odd();
  if (--levels_ > 0) return false;
  part_ = kOther;
  return true;
}

bool TokenizerJson::Odd() {
  has_odd_merge_ |= part_ == kMerges;
  return true;
}

bool TokenizerJson::AddHalf(std::string_view half) {
  if (merges() == kMaxMerges) return Fail(absl::StrCat("has more than ", kMaxMerges, " merges"));
  halves_.Add(half);
  return true;
}

// null, false, 0 and "" mean that a setting is off.
bool IsOff(const Json& value) {
  return value.is_null() || value == false || value == "" || value == 0;
}

// Collects the steps of a normalizer or pre_tokenizer. A step may be a Sequence of steps, also
// nested.
void AddParts(const Json& step, const char* list, std::vector<const Json*>* parts) {
  if (JsonAt(step, {"type"}) != "Sequence") return parts->push_back(&step);
  for (const Json& part : JsonAt(step, {list})) AddParts(part, list, parts);
}

absl::Status CheckJsonSettings(const Json& json) {
  const Json& model = JsonAt(json, {"model"});
  const Json& type = JsonAt(model, {"type"});  // missing in old files
  if (!type.is_null() && type != "BPE") return Other("model.type must be BPE");
  for (const char* name :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"}) {
    if (!IsOff(JsonAt(model, {name}))) return Other("model.", name, " is not supported");
  }
  if (JsonAt(model, {"byte_fallback"}) != true) return Other("model.byte_fallback must be true");
  const auto writes_mark = [](const Json* part) {
    return JsonAt(*part, {"type"}) == "Replace" && JsonAt(*part, {"pattern", "String"}) == " " &&
           JsonAt(*part, {"content"}) == std::string(kSpaceMark);
  };
  std::vector<const Json*> normalizers, splitters;
  AddParts(JsonAt(json, {"normalizer"}), "normalizers", &normalizers);
  if (normalizers.empty() || !std::all_of(normalizers.begin(), normalizers.end(), writes_mark))
    return Other("the normalizer must only replace spaces by U+2581");
  // Splitting at spaces has no effect: the normalizer has replaced all spaces.
  const auto splits_nothing = [](const Json* part) {
    return part->is_null() ||
           (JsonAt(*part, {"type"}) == "Split" && JsonAt(*part, {"pattern", "String"}) == " ");
  };
  AddParts(JsonAt(json, {"pre_tokenizer"}), "pretokenizers", &splitters);
  if (!std::all_of(splitters.begin(), splitters.end(), splits_nothing))
    return Other("the pre_tokenizer must not split the text");
  return absl::OkStatus();
}

// Returns whether the post-processor adds "<bos>" before a text and adds nothing after it.
bool PutsBosFirst(const Json& processor) {
  const Json* part = &processor;
  if (JsonAt(processor, {"type"}) == "Sequence") {
    for (const Json& one : JsonAt(processor, {"processors"})) {
      if (JsonAt(one, {"type"}) == "TemplateProcessing") part = &one;
    }
  }
  const Json& single = JsonAt(*part, {"single"});
  return single.is_array() && single.size() == 2 &&
         JsonAt(single[0], {"SpecialToken", "id"}) == "<bos>" &&
         JsonAt(single[1], {"Sequence", "id"}) == "A";
}

absl::Status NoId(std::string_view text) {
  return Broken("the id of \"", ShownText(text), "\" must be a number below ", kMaxPieces);
}

absl::Status Put(uint64_t id, std::string_view text, PieceType type, Pieces* pieces) {
  if (id >= kMaxPieces) return NoId(text);
  if (text.empty()) return Broken("a piece is empty");
  if (id >= pieces->size()) pieces->resize(id + 1, {"", PieceType::kUnused});
  VocabularyPiece& piece = (*pieces)[id];
  if (!piece.text.empty() && piece.text != text)
    return Broken("\"", ShownText(piece.text), "\" and \"", ShownText(text), "\" have the same id");
  // In Gemma, a piece that merges produce earlier has a smaller id. CheckMerges verifies this.
  piece = {std::string(text), type, -static_cast<float>(id)};
  return absl::OkStatus();
}

// Reads the added tokens. `ids`: ids of the added tokens that the vocabulary already has. A new
// token gets the next id after the vocabulary, as in transformers, even if the file says another,
// and is added to `ids`.
absl::Status ReadAdded(const Json& rest, size_t vocabulary_size,
                       absl::flat_hash_map<std::string, uint64_t>* ids, Pieces* pieces,
                       std::vector<std::string>* notes) {
  const Json& unknown = JsonAt(rest, {"model", "unk_token"});
  uint64_t next = vocabulary_size, last_said = 0;
  for (const Json& token : JsonAt(rest, {"added_tokens"})) {
    const Json &content = JsonAt(token, {"content"}), &said = JsonAt(token, {"id"});
    const auto* text = content.get_ptr<const std::string*>();
    if (text == nullptr) return Broken("an added token has no content");
    for (const char* name : {"single_word", "lstrip", "rstrip"}) {
      if (!IsOff(JsonAt(token, {name})))
        return Other("the added token \"", ShownText(*text), "\" has unsupported ", name);
    }
    if (!said.is_number_unsigned() || said >= kMaxPieces) return NoId(*text);
    const auto [at, is_new] = ids->emplace(*text, next);
    if (is_new && said != next) {
      if (said < next || said < last_said) {
        return Broken("the id of \"", ShownText(*text), "\" is ", said.get<uint64_t>(),
                      ", but transformers assigns ", next);
      }
      if (notes != nullptr) notes->push_back(IdNote(*text, next, said.get<uint64_t>()));
    } else if (!is_new && said != at->second) {
      return Broken("\"", ShownText(*text), "\" has two ids");
    }
    if (is_new) last_said = said.get<uint64_t>();
    PieceType type = PieceType::kUserDefined;
    if (JsonAt(token, {"special"}) == true) type = PieceType::kControl;
    if (content == unknown) type = PieceType::kUnknown;
    if (absl::Status put = Put(at->second, *text, type, pieces); !put.ok()) return put;
    (*pieces)[at->second].is_normalized = !IsOff(JsonAt(token, {"normalized"}));
    if (is_new) ++next;
  }
  return absl::OkStatus();
}

}  // namespace

std::string IdNote(std::string_view text, uint64_t id, uint64_t said) {
  return absl::StrCat("tokenizer: the id of \"", ShownText(text), "\" is ", id,
                      ", as in transformers; the file has ", said);
}

std::string ShownText(std::string_view text) {
  size_t bytes = std::min<size_t>(text.size(), 200);
  while (bytes < text.size() && bytes > 0 && (text[bytes] & 0xC0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes));
}

std::optional<MergeHalves> MergeOf(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) return std::nullopt;
  return MergeHalves(text.substr(0, space), text.substr(space + 1));
}

absl::Status CheckPieceRoom(size_t pieces, size_t bytes) {
  if (pieces > kMaxPieces) return Broken("has more than ", kMaxPieces, " pieces");
  if (bytes > kMaxVocabularyBytes)
    return Broken("has pieces of more than ", kMaxVocabularyBytes, " bytes in all");
  return absl::OkStatus();
}

absl::Status CheckPieces(const Pieces& pieces) {
  absl::flat_hash_set<std::string_view> taken;
  taken.reserve(pieces.size());
  size_t bytes = 0;
  for (const VocabularyPiece& piece : pieces) {
    if (piece.text.empty() && piece.type == PieceType::kUnused) continue;
    if (piece.text.empty()) return Broken("a piece is empty");
    if (piece.text.size() > kMaxPieceBytes)
      return Broken("a piece has ", piece.text.size(), " bytes; the limit is ", kMaxPieceBytes);
    if (FindInvalidUtf8(piece.text).has_value()) return Broken("a piece is not valid UTF-8");
    if (!taken.insert(piece.text).second) return Broken("two pieces are \"", piece.text, "\"");
    if (piece.type == PieceType::kUnused) return Other("the piece \"", piece.text, "\" is unused");
    if (piece.type == PieceType::kByte && !IsBytePiece(piece.text))
      return Broken("the byte piece \"", piece.text, "\" must be like <0x41>");
    bytes += piece.type == PieceType::kByte;
  }
  if (bytes != 256) return Other("the vocabulary must have 256 byte pieces; got ", bytes);
  return absl::OkStatus();
}

absl::Status CheckMerges(size_t merges,
                         absl::FunctionRef<std::optional<MergeHalves>(size_t)> merge_at,
                         Pieces* pieces) {
  absl::flat_hash_map<std::string_view, uint32_t> ids;
  ids.reserve(pieces->size());
  for (size_t id = 0; id < pieces->size(); ++id) {
    if (!(*pieces)[id].text.empty()) ids[(*pieces)[id].text] = static_cast<uint32_t>(id);
  }
  // For each piece: whether a merge produces the piece; whether the piece is a half of a merge.
  std::vector<bool> is_made(pieces->size()), is_half(pieces->size());
  size_t last = 0;
  std::set<size_t> splits;  // for the piece `last`: lengths of the left halves of its merges so far
  for (size_t at = 0; at < merges; ++at) {
    const std::optional<MergeHalves> halves = merge_at(at);
    if (!halves.has_value()) return Broken(kOddMerge);
    const std::string whole = std::string(halves->first).append(halves->second);
    const auto made = ids.find(whole), left = ids.find(halves->first),
               right = ids.find(halves->second);
    if (made == ids.end() || left == ids.end() || right == ids.end())
      return Broken("a merge of \"", ShownText(halves->first), "\" uses a piece that is missing");
    if (made->second < last) return Other("the merges must be in the order of the pieces");
    if (made->second != last) splits.clear();
    last = made->second;
    is_made[last] = is_half[left->second] = is_half[right->second] = true;
    if (!splits.insert(halves->first.size()).second) return Broken("a merge occurs twice");
  }
  // Returns whether merges use this text. They do not use added tokens that occur in no merge.
  const auto joins = [&](std::string_view half) {
    const auto found = ids.find(half);
    if (found == ids.end()) return false;
    const uint32_t id = found->second;
    return is_made[id] || is_half[id] || !IsNeverMerged((*pieces)[id].type);
  };
  size_t possible = 0;
  for (size_t id = 0; id < pieces->size(); ++id) {
    VocabularyPiece& piece = (*pieces)[id];
    if (piece.text.empty()) continue;
    const bool is_character = CharacterAt(piece.text, 0).bytes == piece.text.size();
    if (IsNeverMerged(piece.type) && !piece.is_normalized &&
        (is_character || (is_made[id] && piece.type == PieceType::kControl)) &&
        piece.text.find(kSpaceMark) != std::string::npos) {
      return Other("the added token \"", piece.text,
                   "\" can also be produced by merging spaces, which is not supported");
    }
    if (IsNeverMerged(piece.type) && !is_made[id]) {
      if (piece.type == PieceType::kUserDefined) piece.type = PieceType::kWhole;
      continue;
    }
    const size_t before = possible;
    const std::string_view text = piece.text;
    for (size_t at = 1; at < text.size(); ++at)
      possible += joins(text.substr(0, at)) && joins(text.substr(at));
    if (piece.type == PieceType::kNormal && !is_character && possible == before)
      return Other("no merge produces the piece \"", piece.text, "\"");
  }
  if (possible != merges) {
    return Other("the file lists ", merges, " merges, but its pieces allow ", possible,
                 ": all must be listed");
  }
  return absl::OkStatus();
}

absl::StatusOr<Pieces> ReadTokenizerModel(std::string_view model) {
  Pieces pieces;
  Settings settings;
  bool is_whole = true;
  size_t bytes = 0;
  FieldReader reader(model);
  for (Field field; is_whole && reader.Next(&field);) {
    if (field.number == kTrainer) is_whole = ReadTrainer(field.bytes, &settings);
    if (field.number == kNormalizer) is_whole = ReadNormalizer(field.bytes, &settings);
    if (field.number != kPieces) continue;
    std::optional<VocabularyPiece> piece = ReadPiece(field.bytes);
    is_whole = piece.has_value();
    if (!is_whole) break;
    bytes += piece->text.size();
    if (absl::Status s = CheckPieceRoom(pieces.size() + 1, bytes); !s.ok()) return s;
    pieces.push_back(*std::move(piece));
  }
  if (!is_whole || !reader.ok() || pieces.empty()) return Broken("is not a SentencePiece model");
  absl::Status status = CheckSettings(settings);
  if (status.ok()) status = CheckPieces(pieces);
  if (!status.ok()) return status;
  return pieces;
}

absl::StatusOr<Pieces> ReadTokenizerJson(std::string_view text, std::vector<std::string>* notes) {
  TokenizerJson json;
  const absl::Status parsed = json.Parse(absl::string_view(text.data(), text.size()));
  if (!parsed.ok()) return Broken("the file is not a tokenizer: it ", parsed.message());
  const Json rest = json.Take();
  const Json& added = JsonAt(rest, {"added_tokens"});
  if (!JsonAt(rest, {"model", "vocab"}).is_object() ||
      !JsonAt(rest, {"model", "merges"}).is_array() || !(added.is_array() || added.is_null())) {
    return Broken("the file is not a tokenizer with a vocabulary and merges");
  }
  if (absl::Status status = CheckJsonSettings(rest); !status.ok()) return status;
  absl::flat_hash_map<std::string, uint64_t> added_ids;
  absl::flat_hash_set<std::string_view> contents;
  for (const Json& token : added) {
    if (const auto* content = JsonAt(token, {"content"}).get_ptr<const std::string*>())
      contents.insert(*content);
  }
  Pieces pieces;
  pieces.reserve(json.texts().size() + contents.size());
  absl::Status status = CheckPieceRoom(json.texts().size() + contents.size(), 0);
  for (size_t at = 0; status.ok() && at < json.texts().size(); ++at) {
    const std::string_view piece = json.texts()[at];
    status = Put(json.ids()[at], piece, IsBytePiece(piece) ? PieceType::kByte : PieceType::kNormal,
                 &pieces);
    if (contents.count(piece) > 0) added_ids.emplace(piece, json.ids()[at]);
  }
  if (status.ok()) status = ReadAdded(rest, json.texts().size(), &added_ids, &pieces, notes);
  if (status.ok()) status = CheckPieces(pieces);
  if (status.ok() && json.has_odd_merge()) return Broken(kOddMerge);
  if (status.ok()) {
    status = CheckMerges(
        json.merges(), [&json](size_t at) { return json.merge(at); }, &pieces);
  }
  if (!status.ok()) return status;
  if (notes != nullptr && !PutsBosFirst(JsonAt(rest, {"post_processor"}))) {
    notes->push_back(
        "tokenizer: the post_processor of tokenizer.json does more, or less, than add <bos>; this "
        "worker always begins a text prompt with <bos>: send token ids if it must not");
  }
  return pieces;
}

}  // namespace hearth
