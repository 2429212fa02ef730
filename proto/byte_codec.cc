#include "proto/byte_codec.h"

#include <cassert>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

// Stores byte by byte, so that the byte order of the host does not matter. Compilers turn this into
// one load or store.
template <typename T>
void StoreLittle(char* bytes, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
}

template <typename T>
void AppendLittle(std::string* out, T value) {
  char bytes[sizeof(T)];
  StoreLittle(bytes, value);
  out->append(bytes, sizeof(T));
}

template <typename T>
T LoadLittle(const char* bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

template <typename T>
std::vector<T> LoadArray(absl::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  const char* next = bytes.data();
  for (T& value : values) {
    value = LoadLittle<T>(next);
    next += sizeof(T);
  }
  return values;
}

}  // namespace

void AppendU32(std::string* out, uint32_t value) { AppendLittle(out, value); }
void AppendU64(std::string* out, uint64_t value) { AppendLittle(out, value); }

void AppendU32Array(std::string* out, absl::Span<const uint32_t> values) {
  size_t end = out->size();
  out->resize(end + values.size() * sizeof(uint32_t));
  for (const uint32_t value : values) {
    StoreLittle(out->data() + end, value);
    end += sizeof(uint32_t);
  }
}

void AppendField(std::string* out, FieldType type, absl::string_view payload) {
  assert(payload.size() <= std::numeric_limits<uint32_t>::max());
  out->push_back(static_cast<char>(type));
  AppendU32(out, static_cast<uint32_t>(payload.size()));
  out->append(payload.data(), payload.size());
}

void AppendTextField(std::string* out, absl::string_view text) {
  AppendField(out, FieldType::kText, text);
}

void AppendIntegerField(std::string* out, uint64_t value) {
  std::string payload;
  AppendU64(&payload, value);
  AppendField(out, FieldType::kInteger, payload);
}

void AppendNumberField(std::string* out, double value) {
  if (value == 0) value = 0;  // +0 and -0 compare equal, so both get one encoding
  uint64_t bits;
  static_assert(sizeof(bits) == sizeof(value), "doubles are IEEE 754 binary64");
  std::memcpy(&bits, &value, sizeof(bits));
  std::string payload;
  AppendU64(&payload, bits);
  AppendField(out, FieldType::kNumber, payload);
}

void AppendBytesField(std::string* out, absl::string_view bytes) {
  AppendField(out, FieldType::kBytes, bytes);
}

void AppendIdsField(std::string* out, absl::Span<const uint32_t> ids) {
  out->push_back(static_cast<char>(FieldType::kIds));
  AppendU32(out, static_cast<uint32_t>(ids.size() * sizeof(uint32_t)));
  AppendU32Array(out, ids);
}

absl::string_view ByteReader::Bytes(size_t count, absl::string_view what) {
  if (count > remaining()) {
    Refuse(absl::StrCat(what, " at offset ", offset_, " needs ", count, " bytes, ", remaining(),
                        " are left"));
  }
  if (!status_.ok()) return {};
  const absl::string_view bytes = bytes_.substr(offset_, count);
  offset_ += count;
  return bytes;
}

uint32_t ByteReader::U32(absl::string_view what) {
  const absl::string_view bytes = Bytes(sizeof(uint32_t), what);
  return bytes.empty() ? 0 : LoadLittle<uint32_t>(bytes.data());
}

uint64_t ByteReader::U64(absl::string_view what) {
  const absl::string_view bytes = Bytes(sizeof(uint64_t), what);
  return bytes.empty() ? 0 : LoadU64(bytes);
}

std::vector<uint32_t> ByteReader::U32Array(size_t count, absl::string_view what) {
  return LoadArray<uint32_t>(Array(count, sizeof(uint32_t), what));
}

std::vector<uint64_t> ByteReader::U64Array(size_t count, absl::string_view what) {
  return LoadArray<uint64_t>(Array(count, sizeof(uint64_t), what));
}

// The count comes from untrusted input, so check the remaining length before allocating. Dividing
// avoids an overflow of count * size.
absl::string_view ByteReader::Array(size_t count, size_t size, absl::string_view what) {
  const bool fits = count <= remaining() / size;
  return Bytes(fits ? count * size : std::numeric_limits<size_t>::max(), what);
}

ByteReader::Field ByteReader::NextField(absl::string_view what) {
  const size_t start = offset_;
  const absl::string_view type = Bytes(1, what);
  const absl::string_view payload = Bytes(U32(what), what);
  if (!status_.ok()) return {};
  const auto code = static_cast<uint8_t>(type[0]);
  if (code < static_cast<uint8_t>(FieldType::kText) ||
      code > static_cast<uint8_t>(FieldType::kIds)) {
    Refuse(absl::StrCat(what, " at offset ", start, " has the unknown type ", code));
    return {};
  }
  return {static_cast<FieldType>(code), payload};
}

absl::string_view ByteReader::FieldOf(FieldType type, absl::string_view what) {
  const size_t start = offset_;
  const Field field = NextField(what);
  if (field.type == type) return field.payload;
  Refuse(absl::StrCat(what, " at offset ", start, " has type ", static_cast<int>(field.type),
                      ", not ", static_cast<int>(type)));
  return {};
}

uint64_t ByteReader::IntegerField(absl::string_view what) {
  const absl::string_view payload = FieldOf(FieldType::kInteger, what);
  if (payload.size() == sizeof(uint64_t)) return LoadU64(payload);
  Refuse(absl::StrCat(what, " is an integer of ", payload.size(), " bytes, not 8"));
  return 0;
}

double ByteReader::NumberField(absl::string_view what) {
  const absl::string_view payload = FieldOf(FieldType::kNumber, what);
  if (payload.size() == sizeof(double)) return LoadNumber(payload);
  Refuse(absl::StrCat(what, " is a number of ", payload.size(), " bytes, not 8"));
  return 0;
}

std::vector<uint32_t> ByteReader::IdsField(absl::string_view what) {
  const absl::string_view payload = FieldOf(FieldType::kIds, what);
  if (payload.size() % sizeof(uint32_t) == 0) return LoadArray<uint32_t>(payload);
  Refuse(absl::StrCat(what, " ends inside a number"));
  return {};
}

void ByteReader::Refuse(absl::string_view why) {
  if (status_.ok()) status_ = absl::DataLossError(why);
}

absl::Status ByteReader::End(absl::string_view what) {
  if (remaining() > 0) {
    Refuse(absl::StrCat(what, " has ", remaining(), " bytes too many at offset ", offset_));
  }
  return status_;
}

uint64_t LoadU64(absl::string_view payload) {
  assert(payload.size() == sizeof(uint64_t));
  return LoadLittle<uint64_t>(payload.data());
}

double LoadNumber(absl::string_view payload) {
  const uint64_t bits = LoadU64(payload);
  double number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

void AppendDigest(std::string* out) { AppendU64(out, SliceDigest(out->data(), out->size())); }

absl::StatusOr<absl::string_view> StripDigest(absl::string_view bytes, absl::string_view what) {
  if (bytes.size() < sizeof(uint64_t)) {
    return absl::DataLossError(absl::StrCat(what, " has only ", bytes.size(), " bytes"));
  }
  const absl::string_view body = bytes.substr(0, bytes.size() - sizeof(uint64_t));
  if (SliceDigest(body.data(), body.size()) == LoadU64(bytes.substr(body.size()))) return body;
  return absl::DataLossError(
      absl::StrCat(what, " does not match its digest at offset ", body.size()));
}

}  // namespace hearth
