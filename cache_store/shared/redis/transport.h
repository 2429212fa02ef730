// Transport: a non-blocking socket to a Redis server, with or without TLS. TlsContext: OpenSSL's
// settings, with the client's certificate and the trusted authorities; reads changed files again.
//
// Thread safety: for one thread. Ownership: a Transport closes its socket.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_TRANSPORT_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_TRANSPORT_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache_store/base/reread_file.h"
#include "cache_store/shared/redis/host_resolver.h"
#include "cache_store/shared/redis/redis_options.h"

namespace hearth {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslHandle = std::unique_ptr<SSL, FreeSsl>;

class TlsContext {
 public:
  explicit TlsContext(const RedisOptions& options)
      : context_(
            {options.ca_file, options.certificate_file, options.key_file},
            [&options] { return Read(options); }, options.on_unusable_file) {}

  // Returns the TLS state of a new connection to `host`, a name or an address that the server's
  // certificate must match. kFailedPrecondition names the unusable file.
  absl::StatusOr<SslHandle> Make(const std::string& host);

 private:
  using Context = std::shared_ptr<SSL_CTX>;

  static absl::StatusOr<Context> Read(const RedisOptions& options);

  Reread<Context> context_;
};

class Transport {
 public:
  // Starts connecting. If `ssl` is null, the connection has no TLS. Errors are kUnavailable.
  static absl::StatusOr<std::unique_ptr<Transport>> Connect(const SocketAddress& address,
                                                            SslHandle ssl);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int fd() const { return fd_; }
  // Returns the epoll events for which the caller must wait. `has_output`: the caller has bytes to
  // write.
  uint32_t Awaited(bool has_output) const;

  // Continues connecting (TCP, then TLS), and returns whether it is finished. kUnavailable:
  // connecting failed. kPermissionDenied: the server's certificate failed verification.
  absl::StatusOr<bool> Establish();
  // Read or write without blocking, and return the number of bytes; 0: no bytes could be moved now.
  // kUnavailable: the connection has ended. REQUIRES: Establish() returned true.
  absl::StatusOr<size_t> Read(char* bytes, size_t count);
  absl::StatusOr<size_t> Write(absl::string_view bytes);
  // Returns whether TLS has received bytes for which there will be no epoll event.
  bool HasUnread() const { return ssl_ != nullptr && SSL_has_pending(ssl_.get()) == 1; }

 private:
  Transport(int fd, SslHandle ssl) : fd_(fd), ssl_(std::move(ssl)) {}
  absl::StatusOr<size_t> SslResult(int result, size_t count);

  const int fd_;
  const SslHandle ssl_;
  bool is_connected_ = false;
  bool tls_writes_ = false;  // whether TLS must write before it can read
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_TRANSPORT_H_
