// TlsContext: what OpenSSL is to know of our certificates and authorities, read again once the
// files have changed.
//
// Thread safety: one thread. Invariant: files that cannot be used change nothing that worked.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_TLS_CONTEXT_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_store/shared/redis/redis_options.h"

namespace hearth {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslHandle = std::unique_ptr<SSL, FreeSsl>;

// The errors that OpenSSL has queued, as one text; the queue is empty then.
std::string SslErrors();

class TlsContext {
 public:
  explicit TlsContext(const RedisOptions& options) : options_(options) {}

  // One end of a connection to `host`, whose certificate must be of that name, or of that address.
  // kFailedPrecondition names the file that cannot be used.
  absl::StatusOr<SslHandle> Make(const std::string& host);

 private:
  using Context = std::unique_ptr<SSL_CTX, FreeSsl>;

  absl::Status Refresh();
  absl::StatusOr<Context> Read() const;

  const RedisOptions& options_;
  std::vector<std::string> stamps_;  // of the files that context_ was made of, or failed to be
  Context context_;
  absl::Status status_;  // of the last reading
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_TLS_CONTEXT_H_
