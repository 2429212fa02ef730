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

struct evp_md_ctx_st;  // OpenSSL

namespace hearth {

using Digest = std::array<uint8_t, 32>;

absl::string_view DigestBytes(const Digest& digest);  // borrows `digest`
std::string DigestHex(const Digest& digest);
absl::StatusOr<Digest> DigestFromBytes(absl::string_view bytes);  // exactly 32
absl::StatusOr<Digest> DigestFromHex(absl::string_view hex);      // exactly 64 hex digits
Digest Sha256(absl::string_view bytes);

// SHA-256 of bytes that are added in parts. Thread safety: none.
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
