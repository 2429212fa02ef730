#include "worker/text/piece_types.h"

#include <cstddef>
#include <cstdint>

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

constexpr uint64_t kPiecesField = 1;
constexpr uint64_t kTypeField = 3;

std::optional<PieceType> ReadPieceType(std::string_view piece) {
  FieldReader reader(piece);
  uint64_t type = static_cast<uint64_t>(PieceType::kNormal);
  for (Field field; reader.Next(&field);) {
    if (field.number == kTypeField) type = field.varint;
  }
  const bool known = type >= static_cast<uint64_t>(PieceType::kNormal) &&
                     type <= static_cast<uint64_t>(PieceType::kByte);
  if (!reader.ok() || !known) return std::nullopt;
  return static_cast<PieceType>(type);
}

// The last value of a field of a message, as protobuf has it.
Field LastOf(std::string_view message, uint64_t number) {
  FieldReader reader(message);
  Field last;
  for (Field field; reader.Next(&field);) {
    if (field.number == number) last = field;
  }
  return reader.ok() ? last : Field();
}

constexpr uint64_t kTrainerField = 2, kModelTypeField = 3, kSuffixField = 24, kFallbackField = 35;
constexpr uint64_t kNormalizerField = 3, kCharsmapField = 2;
constexpr uint64_t kBpe = 2;

}  // namespace

bool IsPlainBpe(std::string_view model, const std::vector<PieceType>& types) {
  const std::string_view trainer = LastOf(model, kTrainerField).bytes;
  size_t bytes = 0;
  for (const PieceType type : types) {
    if (type == PieceType::kUnused) return false;
    bytes += type == PieceType::kByte;
  }
  return bytes == 256 && LastOf(trainer, kModelTypeField).varint == kBpe &&
         LastOf(trainer, kFallbackField).varint != 0 && LastOf(trainer, kSuffixField).varint == 0 &&
         !HasNormalizer(model);
}

bool HasNormalizer(std::string_view model) {
  return !LastOf(LastOf(model, kNormalizerField).bytes, kCharsmapField).bytes.empty();
}

std::optional<std::vector<PieceType>> ReadPieceTypes(std::string_view model) {
  std::vector<PieceType> types;
  FieldReader reader(model);
  for (Field field; reader.Next(&field);) {
    if (field.number != kPiecesField) continue;
    const std::optional<PieceType> type = ReadPieceType(field.bytes);
    if (!type.has_value()) return std::nullopt;
    types.push_back(*type);
  }
  if (!reader.ok()) return std::nullopt;
  return types;
}

}  // namespace hearth
