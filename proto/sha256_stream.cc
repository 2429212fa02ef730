#include "proto/sha256_stream.h"

#include <openssl/evp.h>

#include <cstdlib>

namespace hearth {

// OpenSSL fails here only without any SHA-256; a digest of nothing must never be used.
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
