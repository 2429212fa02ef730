// Appends little-endian values to a string, and reads them back: ByteReader never reads past its
// input.
//
// The canonical encodings (fingerprint, keys), the snapshot format and the store's records on disk
// use these functions. Docs: docs/dev/snapshot-format.md, "Notation".
// Thread safety: free functions are pure; a ByteReader is used by one thread at a time.
// Ownership: a ByteReader borrows its input, which must outlive the reader and its results.
// Invariants: (1) after a failed read nothing more is consumed; (2) every error is kDataLoss; the
// error of a read names the field and its offset.
#ifndef HEARTH_PROTO_BYTE_CODEC_H_
#define HEARTH_PROTO_BYTE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace hearth {

void AppendU32(std::string* out, uint32_t value);
void AppendU64(std::string* out, uint64_t value);
void AppendU32Array(std::string* out, absl::Span<const uint32_t> values);

// Types of a canonical field. The numbers are hashed and stored: never change them.
enum class FieldType : uint8_t {
  kText = 1,
  kInteger = 2,
  kNumber = 3,
  kBytes = 4,
  kIds = 5,
};

// Appends a canonical field: type (1 byte), length of the payload (u32), payload.
void AppendField(std::string* out, FieldType type, absl::string_view payload);
void AppendTextField(std::string* out, absl::string_view text);
void AppendIntegerField(std::string* out, uint64_t value);
void AppendNumberField(std::string* out, double value);  // -0 is written as +0
void AppendBytesField(std::string* out, absl::string_view bytes);
void AppendIdsField(std::string* out, absl::Span<const uint32_t> ids);

// Reads values in order. Remembers the first failure, so that callers need to check for errors only
// once.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : bytes_(bytes) {}

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }
  // Returns the first failure of a read or of Refuse; OK if there was none.
  const absl::Status& status() const { return status_; }

  // Each method reads a value. `what` names the field in errors. After a failure the methods return
  // zero or an empty value.
  absl::string_view Bytes(size_t count, absl::string_view what);
  uint32_t U32(absl::string_view what);
  uint64_t U64(absl::string_view what);
  std::vector<uint32_t> U32Array(size_t count, absl::string_view what);
  std::vector<uint64_t> U64Array(size_t count, absl::string_view what);

  struct Field {
    FieldType type = FieldType::kText;
    absl::string_view payload;
  };
  Field NextField(absl::string_view what);
  // Returns the payload of the next field. Fails if the field has another type.
  absl::string_view FieldOf(FieldType type, absl::string_view what);
  uint64_t IntegerField(absl::string_view what);
  double NumberField(absl::string_view what);
  std::vector<uint32_t> IdsField(absl::string_view what);

  // Records a failure found by the caller. Has no effect after an earlier failure.
  void Refuse(absl::string_view why);
  // Fails if bytes remain. Returns status().
  absl::Status End(absl::string_view what);

 private:
  absl::string_view Array(size_t count, size_t size, absl::string_view what);

  absl::string_view bytes_;
  size_t offset_ = 0;
  absl::Status status_;
};

// Decode the payload of an integer or a number field. REQUIRES: payload.size() == 8.
uint64_t LoadU64(absl::string_view payload);
double LoadNumber(absl::string_view payload);

// Appends the XXH3-64 digest of all bytes in `out`.
void AppendDigest(std::string* out);
// Returns the bytes before the digest at the end. kDataLoss: the digest does not match these bytes.
absl::StatusOr<absl::string_view> StripDigest(absl::string_view bytes, absl::string_view what);

}  // namespace hearth

#endif  // HEARTH_PROTO_BYTE_CODEC_H_
