// Sha256Stream: the SHA-256 of bytes that come in parts, one after the other.
//
// Thread safety: none.
#ifndef HEARTH_PROTO_SHA256_STREAM_H_
#define HEARTH_PROTO_SHA256_STREAM_H_

#include "absl/strings/string_view.h"
#include "proto/digest.h"

struct evp_md_ctx_st;  // OpenSSL

namespace hearth {

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

#endif  // HEARTH_PROTO_SHA256_STREAM_H_
