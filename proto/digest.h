// SHA-256 digests of fingerprints, prefixes, restore points and callers' tokens.
//
// Thread safety: pure functions.
#ifndef HEARTH_PROTO_DIGEST_H_
#define HEARTH_PROTO_DIGEST_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct evp_md_ctx_st;  // declared by OpenSSL

namespace hearth {

using Digest = std::array<uint8_t, 32>;

absl::string_view DigestBytes(const Digest& digest);  // the result borrows `digest`
std::string DigestHex(const Digest& digest);
// kInvalidArgument unless there are exactly 32 bytes
absl::StatusOr<Digest> DigestFromBytes(absl::string_view bytes);
// kInvalidArgument unless there are exactly 64 hex digits
absl::StatusOr<Digest> DigestFromHex(absl::string_view hex);
Digest Sha256(absl::string_view bytes);

// Computes the SHA-256 digest of bytes that are added piece by piece. Thread safety: none.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Add(absl::string_view bytes);
  Digest SoFar() const;

 private:
  evp_md_ctx_st* const context_;
};

}  // namespace hearth

#endif  // HEARTH_PROTO_DIGEST_H_
