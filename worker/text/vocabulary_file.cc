#include "worker/text/vocabulary_file.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/model/model_file.h"
#include "worker/text/utf8.h"

namespace hearth {
namespace {

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

struct Field {
  uint64_t number = 0;
  uint64_t varint = 0;     // of a varint field
  std::string_view bytes;  // of a length-delimited field
};

// Takes fields off the front of a message. A false answer with `ok()` is the end of the message.
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

// Of which Gemma's longest has 93.
constexpr size_t kMaxPieceBytes = 512;

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

// Of ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
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

// What the later parts of a message say, as protobuf has it: of the fields that are asked for.
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
    return Other("has a normalizer, which changes a text before tokens are made of it");
  if (settings.adds_prefix || settings.removes_spaces || !settings.escapes_spaces)
    return Other("adds a prefix or drops white space");
  if (!settings.is_bpe || settings.has_suffix) return Other("does more than merge neighbours");
  if (!settings.has_bytes) return Other("has no bytes for characters without a piece");
  return absl::OkStatus();
}

// --- tokenizer.json ---

// The value at a path of objects; null where there is none.
const Json& At(const Json& json, std::initializer_list<const char*> path) {
  static const Json kNothing;
  const Json* at = &json;
  for (const char* name : path) {
    const auto found = at->is_object() ? at->find(name) : at->end();
    if (!at->is_object() || found == at->end()) return kNothing;
    at = &*found;
  }
  return *at;
}

// Nothing, false, and the empty text are how a setting says no.
bool IsOff(const Json& value) {
  return value.is_null() || value == false || value == "" || value == 0;
}

absl::Status CheckJsonSettings(const Json& json) {
  const Json& model = At(json, {"model"});
  if (At(model, {"type"}) != "BPE") return Other("its model is not BPE");
  for (const char* name :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"}) {
    if (!IsOff(At(model, {name}))) return Other("model.", name, " is set");
  }
  if (At(model, {"byte_fallback"}) != true) return Other("model.byte_fallback is not set");
  const Json& normalizer = At(json, {"normalizer"});
  if (At(normalizer, {"type"}) != "Replace" || At(normalizer, {"pattern", "String"}) != " " ||
      At(normalizer, {"content"}) != std::string(kSpaceMark)) {
    return Other("its normalizer does more than write U+2581 for a space");
  }
  // After that no text has a space to be split at.
  const Json& splitter = At(json, {"pre_tokenizer"});
  const bool splits_nothing =
      At(splitter, {"type"}) == "Split" && At(splitter, {"pattern", "String"}) == " ";
  if (!splitter.is_null() && !splits_nothing) return Other("its pre_tokenizer divides texts");
  return absl::OkStatus();
}

absl::Status Put(const Json& id, std::string text, PieceType type, Pieces* pieces) {
  const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < pieces->size();
  if (!fits) return Broken("the id of \"", text, "\" is no number below ", pieces->size());
  VocabularyPiece& piece = (*pieces)[id.get<uint64_t>()];
  if (!piece.text.empty() && piece.text != text)
    return Broken("\"", piece.text, "\" and \"", text, "\" have one id");
  // In Gemma the earlier a piece was made, the smaller is its id: CheckMerges.
  piece = {std::move(text), type, -static_cast<float>(id.get<uint64_t>())};
  return absl::OkStatus();
}

absl::Status ReadAdded(const Json& added, const Json& unknown, Pieces* pieces) {
  for (const Json& token : added) {
    const Json& content = At(token, {"content"});
    if (!content.is_string()) return Broken("an added token has no content");
    for (const char* name : {"single_word", "lstrip", "rstrip", "normalized"}) {
      if (!IsOff(At(token, {name})))
        return Other("the added token \"", content.get<std::string>(), "\" has ", name);
    }
    PieceType type = PieceType::kUserDefined;
    if (At(token, {"special"}) == true) type = PieceType::kControl;
    if (content == unknown) type = PieceType::kUnknown;
    if (absl::Status put = Put(At(token, {"id"}), content, type, pieces); !put.ok()) return put;
  }
  return absl::OkStatus();
}

// ["a", "b"], or "a b" in older files.
std::optional<std::pair<std::string, std::string>> Halves(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return std::make_pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  if (!merge.is_string()) return std::nullopt;
  const std::string& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    return std::nullopt;
  return std::make_pair(text.substr(0, space), text.substr(space + 1));
}

}  // namespace

bool IsBytePiece(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return text.size() == 6 && text.substr(0, 3) == "<0x" && is_digit(text[3]) && is_digit(text[4]) &&
         text[5] == '>';
}

absl::Status CheckPieces(const Pieces& pieces) {
  std::unordered_set<std::string_view> taken;
  taken.reserve(pieces.size());
  size_t bytes = 0;
  for (const VocabularyPiece& piece : pieces) {
    if (piece.text.empty()) return Broken("a piece is empty");
    if (piece.text.size() > kMaxPieceBytes)
      return Broken("a piece has ", piece.text.size(), " bytes; the limit is ", kMaxPieceBytes);
    if (FindInvalidUtf8(piece.text).has_value()) return Broken("a piece is no UTF-8");
    if (!taken.insert(piece.text).second) return Broken("two pieces are \"", piece.text, "\"");
    if (piece.type == PieceType::kUnused) return Other("the piece \"", piece.text, "\" is unused");
    if (piece.type == PieceType::kByte && !IsBytePiece(piece.text))
      return Broken("the piece of a byte is \"", piece.text, "\"");
    bytes += piece.type == PieceType::kByte;
  }
  if (bytes != 256) return Other("characters without a piece do not become bytes");
  return absl::OkStatus();
}

absl::Status CheckMerges(const Json& merges, const Pieces& pieces) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) ids[pieces[id].text] = id;
  size_t last = 0;
  std::set<size_t> splits;  // of the piece of that id
  for (const Json& merge : merges) {
    const auto halves = Halves(merge);
    if (!halves.has_value()) return Broken("a merge is no pair of texts");
    const std::string whole = halves->first + halves->second;
    const auto made = ids.find(whole);
    if (made == ids.end() || ids.count(halves->first) + ids.count(halves->second) < 2)
      return Broken("a merge of \"", halves->first, "\" is of no pieces");
    if (made->second < last) return Other("its merges are in another order than its pieces");
    if (made->second != last) splits.clear();
    last = made->second;
    if (!splits.insert(halves->first.size()).second) return Broken("a merge is there twice");
  }
  size_t possible = 0;
  for (const VocabularyPiece& piece : pieces) {
    const size_t before = possible;
    const std::string_view text = piece.text;
    for (size_t at = 1; at < text.size(); ++at)
      possible += ids.count(text.substr(0, at)) > 0 && ids.count(text.substr(at)) > 0;
    const bool is_character = CharacterAt(text, 0).bytes == text.size();
    if (piece.type == PieceType::kNormal && !is_character && possible == before)
      return Other("no merge makes the piece \"", piece.text, "\"");
  }
  if (possible != merges.size()) return Other("some of its pieces have merges that are missing");
  return absl::OkStatus();
}

absl::StatusOr<Pieces> ReadTokenizerModel(std::string_view model) {
  Pieces pieces;
  Settings settings;
  bool is_whole = true;
  FieldReader reader(model);
  for (Field field; is_whole && reader.Next(&field);) {
    if (field.number == kTrainer) is_whole = ReadTrainer(field.bytes, &settings);
    if (field.number == kNormalizer) is_whole = ReadNormalizer(field.bytes, &settings);
    if (field.number != kPieces) continue;
    std::optional<VocabularyPiece> piece = ReadPiece(field.bytes);
    is_whole = piece.has_value();
    if (is_whole) pieces.push_back(*std::move(piece));
  }
  if (!is_whole || !reader.ok() || pieces.empty()) return Broken("not a SentencePiece model");
  absl::Status status = CheckSettings(settings);
  if (status.ok()) status = CheckPieces(pieces);
  if (!status.ok()) return status;
  return pieces;
}

absl::StatusOr<Pieces> ReadTokenizerJson(std::string_view text) {
  const Json json = ParseModelJson(absl::string_view(text.data(), text.size()));
  const Json& vocabulary = At(json, {"model", "vocab"});
  const Json& merges = At(json, {"model", "merges"});
  const Json& added = At(json, {"added_tokens"});
  if (!vocabulary.is_object() || !merges.is_array() || !(added.is_array() || added.is_null()))
    return Broken("not a tokenizer with a vocabulary and merges");
  absl::Status status = CheckJsonSettings(json);
  // Some added tokens lie behind the vocabulary, the others in it.
  size_t size = vocabulary.size();
  for (const Json& token : added) {
    const Json& content = At(token, {"content"});
    size += content.is_string() && !vocabulary.contains(content.get<std::string>());
  }
  Pieces pieces(size);
  for (auto at = vocabulary.begin(); status.ok() && at != vocabulary.end(); ++at) {
    status = Put(at.value(), at.key(),
                 IsBytePiece(at.key()) ? PieceType::kByte : PieceType::kNormal, &pieces);
  }
  if (status.ok()) status = ReadAdded(added, At(json, {"model", "unk_token"}), &pieces);
  if (status.ok()) status = CheckPieces(pieces);
  if (status.ok()) status = CheckMerges(merges, pieces);
  if (!status.ok()) return status;
  return pieces;
}

}  // namespace hearth
