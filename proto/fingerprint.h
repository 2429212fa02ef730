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
  std::string name;  // consists of [a-z0-9_.], at most kMaxFingerprintNameBytes long
  std::variant<uint64_t, double, std::string> value;

  std::string ValueText() const;  // returns the value as text: "512", "1e-06", "gelu_pytorch_tanh"
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
  // Creates a fingerprint with the fields sorted by name. kInvalidArgument: a duplicate name, a bad
  // name, a text that is too long, or a number that is not finite.
  static absl::StatusOr<Fingerprint> Create(std::vector<FingerprintField> fields);

  const Digest& digest() const { return digest_; }
  absl::Span<const FingerprintField> fields() const { return fields_; }
  // Returns the layout of KV that the fields describe. kInvalidArgument names the field that is
  // missing or invalid.
  absl::StatusOr<KvLayout> Layout() const;

  // Returns the canonical bytes, over which the digest is computed. Parse reads these bytes.
  std::string Serialize() const;
  static absl::StatusOr<Fingerprint> Parse(absl::string_view bytes);

 private:
  std::vector<FingerprintField> fields_;
  Digest digest_{};
};

// Returns the value of the fingerprint field `codec` for this quantization.
std::string CodecText(const KvQuantization& quantization);

struct FieldDifference {
  // a value is "(absent)" if that fingerprint does not have the field
  std::string field, ours, theirs;
};
// Returns all differences, sorted by name, but with digest fields (*_sha256) last, because a digest
// differs whenever the hashed data differs. Returns an empty list if the digests of the
// fingerprints are equal.
std::vector<FieldDifference> Compare(const Fingerprint& ours, const Fingerprint& theirs);

}  // namespace hearth

#endif  // HEARTH_PROTO_FINGERPRINT_H_
