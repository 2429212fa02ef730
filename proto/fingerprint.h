// Fingerprint: a digest of everything except the tokens that determines the bytes of keys and
// values (KV).
//
// digest = SHA-256 over "hearth.fingerprint.v1" and the fields, each typed and length-prefixed,
// sorted by name (bytes and test vectors: docs/dev/snapshot-format.md). Processes with equal
// digests may exchange KV. Compare() names the fields that differ.
// Values: copying is safe, and threads may share a constructed object.
#ifndef HEARTH_PROTO_FINGERPRINT_H_
#define HEARTH_PROTO_FINGERPRINT_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/digest.h"
#include "proto/kv_layout.h"

namespace hearth {

struct FingerprintField {
  std::string name;  // [a-z0-9_.]+, at most kMaxFingerprintNameBytes
  std::variant<uint64_t, double, std::string> value;

  std::string ValueText() const;  // readable: "512", "1e-06", "gelu_pytorch_tanh"
};

inline constexpr size_t kMaxFingerprintFields = 64;
inline constexpr size_t kMaxFingerprintNameBytes = 64;
inline constexpr size_t kMaxFingerprintTextBytes = 4096;

// Fields that the store reads to know the layout. A fingerprint without them is refused.
//     All: chunk_tokens, window (integers); exactness ("exact", "portable" or "invariant");
//     layer_types (one letter per layer: g or l); object_layout (integer); codec ("raw", or
//     "quantized:" and the options with which whole chunks are quantized).
//     object_layout 1, rows: kv_heads, head_dim (integers), kv_dtype ("float32"...).
//     object_layout 2, pages that only the engine that wrote them can read: page_bytes (integer).
class Fingerprint {
 public:
  Fingerprint() = default;
  // Sorts the fields by name. kInvalidArgument: duplicates, bad names, too long texts, non-finite
  // numbers.
  static absl::StatusOr<Fingerprint> Create(std::vector<FingerprintField> fields);

  const Digest& digest() const { return digest_; }
  absl::Span<const FingerprintField> fields() const { return fields_; }
  // Returns the geometry that the fields describe. kInvalidArgument names the missing or bad field.
  absl::StatusOr<KvLayout> Layout() const;

  // The canonical bytes, which the digest covers, and their parser.
  std::string Serialize() const;
  static absl::StatusOr<Fingerprint> Parse(absl::string_view bytes);

 private:
  std::vector<FingerprintField> fields_;
  Digest digest_{};
};

// Returns the value of the field `codec`.
std::string CodecText(const KvQuantization& quantization);

struct FieldDifference {
  std::string field, ours, theirs;  // "(absent)" if one side does not have the field
};
// Returns all differences, sorted by name, but digest fields (*_sha256) last: a digest differs
// whenever its input differs. Empty if the digests are equal.
std::vector<FieldDifference> Compare(const Fingerprint& ours, const Fingerprint& theirs);

}  // namespace hearth

#endif  // HEARTH_PROTO_FINGERPRINT_H_
