#include "proto/fingerprint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/byte_codec.h"
#include "proto/kv_quantization.h"

namespace hearth {
namespace {

constexpr absl::string_view kDomain = "hearth.fingerprint.v1";
constexpr uint64_t kRowsLayout = 1, kPagesLayout = 2;
constexpr absl::string_view kRawCodec = "raw", kQuantizedCodec = "quantized:";

bool GoodName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxFingerprintNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
}

absl::Status CheckField(const FingerprintField& field) {
  if (!GoodName(field.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fingerprint field name \"", absl::CEscape(field.name.substr(0, 80)),
                     "\" is not 1 to ", kMaxFingerprintNameBytes, " of [a-z0-9_.]"));
  }
  if (const auto* number = std::get_if<double>(&field.value); number && !std::isfinite(*number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fingerprint field ", field.name, " is not a finite number"));
  }
  if (const auto* text = std::get_if<std::string>(&field.value);
      text && text->size() > kMaxFingerprintTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("fingerprint field ", field.name, " has ",
                                                   text->size(), " bytes, the limit is ",
                                                   kMaxFingerprintTextBytes));
  }
  return absl::OkStatus();
}

void AppendValue(std::string* out, const FingerprintField& field) {
  if (const auto* integer = std::get_if<uint64_t>(&field.value)) {
    AppendIntegerField(out, *integer);
  } else if (const auto* number = std::get_if<double>(&field.value)) {
    AppendNumberField(out, *number);
  } else {
    AppendTextField(out, std::get<std::string>(field.value));
  }
}

FingerprintField ReadField(ByteReader* reader) {
  FingerprintField field;
  field.name = std::string(reader->FieldOf(FieldType::kText, "fingerprint field name"));
  const ByteReader::Field value = reader->NextField("fingerprint field value");
  const bool is_eight_bytes = value.payload.size() == sizeof(uint64_t);
  if (value.type == FieldType::kText) {
    field.value = std::string(value.payload);
  } else if (value.type == FieldType::kInteger && is_eight_bytes) {
    field.value = LoadU64(value.payload);
  } else if (value.type == FieldType::kNumber && is_eight_bytes) {
    field.value = LoadNumber(value.payload);
  } else {
    reader->Refuse(absl::StrCat("fingerprint field ", absl::CEscape(field.name), " has type ",
                                static_cast<int>(value.type), " and ", value.payload.size(),
                                " bytes"));
  }
  return field;
}

// Finds fields by name. Remembers the first error: a missing field, or a field of a wrong type.
class FieldReader {
 public:
  explicit FieldReader(absl::Span<const FingerprintField> fields) : fields_(fields) {}

  uint32_t Integer(absl::string_view name) {
    const uint64_t* value = Get<uint64_t>(name, "an integer");
    if (value == nullptr) return 0;
    if (*value <= UINT32_MAX) return static_cast<uint32_t>(*value);
    Fail(absl::StrCat("fingerprint field ", name, " is ", *value, ", over 32 bits"));
    return 0;
  }
  absl::string_view Text(absl::string_view name) {
    const std::string* value = Get<std::string>(name, "text");
    return value == nullptr ? absl::string_view() : absl::string_view(*value);
  }
  void Fail(std::string message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(message);
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
  const T* Get(absl::string_view name, absl::string_view kind) {
    for (const FingerprintField& field : fields_) {
      if (field.name != name) continue;
      const T* value = std::get_if<T>(&field.value);
      if (value == nullptr) Fail(absl::StrCat("fingerprint field ", name, " is not ", kind));
      return value;
    }
    Fail(absl::StrCat("fingerprint field ", name, " is missing"));
    return nullptr;
  }

  absl::Span<const FingerprintField> fields_;
  absl::Status status_;
};

// Returns the value of `known` whose name is the value of the field.
template <typename Enum>
Enum ReadNamed(FieldReader* reader, absl::string_view field, std::initializer_list<Enum> known,
               const char* (*name_of)(Enum)) {
  const absl::string_view name = reader->Text(field);
  std::string names;
  for (const Enum value : known) {
    if (name == name_of(value)) return value;
    absl::StrAppend(&names, names.empty() ? "" : ", ", name_of(value));
  }
  reader->Fail(absl::StrCat("fingerprint field ", field, " is \"", absl::CEscape(name),
                            "\", known are ", names));
  return *known.begin();
}

KvQuantization ReadCodec(FieldReader* reader) {
  const absl::string_view codec = reader->Text("codec");
  if (codec == kRawCodec) return {};
  uint32_t residual = 0;
  absl::string_view options = codec;
  if (absl::ConsumePrefix(&options, kQuantizedCodec)) {
    const absl::StatusOr<KvQuantization> read = ParseKvQuantization(options, &residual);
    // Accept only the text that CodecText writes, so that each quantization has exactly one text.
    if (read.ok() && CodecText(*read) == codec) return *read;
  }
  reader->Fail(absl::StrCat("fingerprint field codec is \"", absl::CEscape(codec), "\", known are ",
                            kRawCodec, " and ", kQuantizedCodec, "OPTIONS"));
  return {};
}

std::vector<LayerGroup> ReadLayers(FieldReader* reader) {
  std::vector<LayerGroup> layers;
  for (char letter : reader->Text("layer_types")) {
    if (letter != 'g' && letter != 'l') {
      reader->Fail(absl::StrCat("fingerprint field layer_types has the letter \"",
                                absl::CEscape(std::string(1, letter)), "\", known are g, l"));
    }
    layers.push_back(letter == 'g' ? LayerGroup::kGlobal : LayerGroup::kLocal);
  }
  return layers;
}

}  // namespace

std::string CodecText(const KvQuantization& quantization) {
  if (!quantization.is_on()) return std::string(kRawCodec);
  return absl::StrCat(kQuantizedCodec, KvQuantizationText(quantization));
}

std::string FingerprintField::ValueText() const {
  if (const auto* integer = std::get_if<uint64_t>(&value)) return absl::StrCat(*integer);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  // Returns the shortest decimal text that parses to the same number.
  const double number = std::get<double>(value);
  char buffer[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(buffer, sizeof(buffer), "%.*g", digits, number);
    if (std::strtod(buffer, nullptr) == number) break;
  }
  return buffer;
}

absl::StatusOr<Fingerprint> Fingerprint::Create(std::vector<FingerprintField> fields) {
  if (fields.empty() || fields.size() > kMaxFingerprintFields) {
    return absl::InvalidArgumentError(absl::StrCat("a fingerprint has 1 to ", kMaxFingerprintFields,
                                                   " fields, not ", fields.size()));
  }
  for (const FingerprintField& field : fields) {
    absl::Status status = CheckField(field);
    if (!status.ok()) return status;
  }
  std::sort(fields.begin(), fields.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < fields.size(); ++i) {
    if (fields[i].name == fields[i - 1].name) {
      return absl::InvalidArgumentError(
          absl::StrCat("fingerprint field ", fields[i].name, " is given twice"));
    }
  }
  Fingerprint fingerprint;
  fingerprint.fields_ = std::move(fields);
  fingerprint.digest_ = Sha256(fingerprint.Serialize());
  return fingerprint;
}

absl::StatusOr<KvLayout> Fingerprint::Layout() const {
  FieldReader reader(fields_);
  KvLayout layout;
  layout.chunk_tokens = reader.Integer("chunk_tokens");
  layout.window = reader.Integer("window");
  const uint64_t version = reader.Integer("object_layout");
  if (version == kPagesLayout) {
    layout.page_bytes = reader.Integer("page_bytes");
    if (layout.page_bytes == 0) reader.Fail("fingerprint field page_bytes is 0");
  } else if (version == kRowsLayout) {
    layout.kv_heads = reader.Integer("kv_heads");
    layout.head_dim = reader.Integer("head_dim");
    layout.dtype =
        ReadNamed(&reader, "kv_dtype", {KvDtype::kFloat32, KvDtype::kBFloat16, KvDtype::kFloat16},
                  &KvDtypeName);
  } else {
    reader.Fail(absl::StrCat("fingerprint field object_layout is ", version, ", known are ",
                             kRowsLayout, " and ", kPagesLayout));
  }
  layout.exactness =
      ReadNamed(&reader, "exactness",
                {Exactness::kExact, Exactness::kPortable, Exactness::kInvariant}, &ExactnessName);
  layout.layers = ReadLayers(&reader);
  layout.quantization = ReadCodec(&reader);
  if (!reader.status().ok()) return reader.status();
  absl::Status status = layout.Validate();
  if (!status.ok()) return status;
  return layout;
}

std::string Fingerprint::Serialize() const {
  std::string out;
  AppendTextField(&out, kDomain);
  AppendIntegerField(&out, fields_.size());
  for (const FingerprintField& field : fields_) {
    AppendTextField(&out, field.name);
    AppendValue(&out, field);
  }
  return out;
}

absl::StatusOr<Fingerprint> Fingerprint::Parse(absl::string_view bytes) {
  ByteReader reader(bytes);
  const absl::string_view domain = reader.FieldOf(FieldType::kText, "fingerprint domain");
  if (domain != kDomain) {
    reader.Refuse(absl::StrCat("fingerprint begins with \"", absl::CEscape(domain), "\", not with ",
                               kDomain));
  }
  const uint64_t count = reader.IntegerField("fingerprint field count");
  if (count > kMaxFingerprintFields) {
    reader.Refuse(absl::StrCat("fingerprint announces ", count, " fields, the limit is ",
                               kMaxFingerprintFields));
  }
  std::vector<FingerprintField> fields;
  for (uint64_t i = 0; i < count && reader.status().ok(); ++i) fields.push_back(ReadField(&reader));
  if (!reader.status().ok()) return reader.status();
  auto fingerprint = Create(std::move(fields));
  if (!fingerprint.ok()) return absl::DataLossError(fingerprint.status().message());
  // Refuses trailing bytes, unsorted fields and -0, so that a fingerprint has exactly one encoding.
  if (fingerprint->Serialize() != bytes) {
    return absl::DataLossError("fingerprint is not in its canonical encoding");
  }
  return fingerprint;
}

std::vector<FieldDifference> Compare(const Fingerprint& ours, const Fingerprint& theirs) {
  constexpr char kAbsent[] = "(absent)";
  std::vector<FieldDifference> differences;
  auto a = ours.fields().begin();
  auto b = theirs.fields().begin();
  while (a != ours.fields().end() || b != theirs.fields().end()) {
    const bool only_a =
        b == theirs.fields().end() || (a != ours.fields().end() && a->name < b->name);
    const bool only_b = !only_a && (a == ours.fields().end() || b->name < a->name);
    if (only_a) {
      differences.push_back({a->name, a->ValueText(), kAbsent});
      ++a;
    } else if (only_b) {
      differences.push_back({b->name, kAbsent, b->ValueText()});
      ++b;
    } else {
      if (a->value != b->value) differences.push_back({a->name, a->ValueText(), b->ValueText()});
      ++a;
      ++b;
    }
  }
  // List digest fields last: a digest differs whenever the hashed data differs, and does not say
  // where.
  std::stable_partition(differences.begin(), differences.end(),
                        [](const FieldDifference& difference) {
                          return !absl::EndsWith(difference.field, "_sha256");
                        });
  return differences;
}

}  // namespace hearth
