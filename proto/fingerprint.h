// Fingerprint: a digest of everything but the tokens that decides the bytes of KV.
//
// digest = SHA-256 over "hearth.fingerprint.v1" and the fields, each typed and length-prefixed, in
// ascending order of name (docs/dev/snapshot-format.md has the bytes and test vectors). Two
// processes with equal digests may exchange KV; a difference can be named field by field.
// Values, safe to copy and to share between threads once built.
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

  std::string ValueText() const;  // for people: "512", "1e-06", "gelu_pytorch_tanh"
};

inline constexpr size_t kMaxFingerprintFields = 64;
inline constexpr size_t kMaxFingerprintNameBytes = 64;
inline constexpr size_t kMaxFingerprintTextBytes = 4096;

// Field names that the store reads to know the layout. A fingerprint without them is refused.
//   chunk_tokens, window (integers); exactness ("exact", "portable" or "invariant"), layer_types
//   (one letter a layer: g or l), object_layout (integer), codec ("raw", or "quantized:" and the
//   options that whole chunks are quantized by).
//   object_layout 1, rows: kv_heads, head_dim (integers), kv_dtype ("float32"...).
//   object_layout 2, pages that only the engine which wrote them reads: page_bytes (integer).
class Fingerprint {
 public:
  Fingerprint() = default;
  // Sorts by name; refuses duplicates, bad names, over-long text, non-finite numbers.
  static absl::StatusOr<Fingerprint> Create(std::vector<FingerprintField> fields);

  const Digest& digest() const { return digest_; }
  absl::Span<const FingerprintField> fields() const { return fields_; }
  // The geometry these fields describe; INVALID_ARGUMENT names the missing or bad field.
  absl::StatusOr<KvLayout> Layout() const;

  // Canonical bytes (what is hashed) and back.
  std::string Serialize() const;
  static absl::StatusOr<Fingerprint> Parse(absl::string_view bytes);

 private:
  std::vector<FingerprintField> fields_;
  Digest digest_{};
};

// The value of the field `codec`.
std::string CodecText(const KvQuantization& quantization);

struct FieldDifference {
  std::string field, ours, theirs;  // "(absent)" where a side lacks it
};
// All differences, in order of name, fields that are digests themselves (*_sha256) last: those
// follow from others. Empty when the digests are equal.
std::vector<FieldDifference> Compare(const Fingerprint& ours, const Fingerprint& theirs);

}  // namespace hearth

#endif  // HEARTH_PROTO_FINGERPRINT_H_
