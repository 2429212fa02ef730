#include "proto/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace hearth {

absl::string_view DigestBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string DigestHex(const Digest& digest) { return absl::BytesToHexString(DigestBytes(digest)); }

absl::StatusOr<Digest> DigestFromBytes(absl::string_view bytes) {
  Digest digest;
  if (bytes.size() != digest.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a digest has ", digest.size(), " bytes, not ", bytes.size()));
  }
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return digest;
}

absl::StatusOr<Digest> DigestFromHex(absl::string_view hex) {
  const bool is_hex =
      std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return absl::ascii_isxdigit(c); });
  if (hex.size() != 2 * Digest().size() || !is_hex) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CEscape(hex.substr(0, 80)), "\" is not 64 hexadecimal digits"));
  }
  return DigestFromBytes(absl::HexStringToBytes(hex));
}

Digest Sha256(absl::string_view bytes) {
  // Fetched once, because EVP_sha256() would search a table under a lock on each use.
  static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Digest digest;
  unsigned int size = 0;
  const int ok = sha256 != nullptr &&
                 EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, sha256, nullptr);
  // Fails only if OpenSSL has no SHA-256. Abort: continuing with a digest of zeros would be unsafe.
  if (ok != 1 || size != digest.size()) std::abort();
  return digest;
}

// Fails only if OpenSSL has no SHA-256. Abort: continuing with a digest that ignores the bytes
// would be unsafe.
Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr || EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) != 1) std::abort();
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(context_); }

void Sha256Stream::Add(absl::string_view bytes) {
  if (EVP_DigestUpdate(context_, bytes.data(), bytes.size()) != 1) std::abort();
}

Digest Sha256Stream::SoFar() const {
  const Sha256Stream copy;
  Digest digest;
  unsigned int size = 0;
  if (EVP_MD_CTX_copy_ex(copy.context_, context_) != 1 ||
      EVP_DigestFinal_ex(copy.context_, digest.data(), &size) != 1 || size != digest.size()) {
    std::abort();
  }
  return digest;
}

}  // namespace hearth
