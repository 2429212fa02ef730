// Transport: a socket to a Redis server, with TLS or without, that never waits; TlsContext: what
// OpenSSL is to know of our certificates and authorities, read again once the files have changed.
//
// Thread safety: one thread. Ownership: closes its socket.
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

  // One end of a connection to `host`, whose certificate must be of that name, or of that address.
  // kFailedPrecondition names the file that cannot be used.
  absl::StatusOr<SslHandle> Make(const std::string& host);

 private:
  using Context = std::shared_ptr<SSL_CTX>;

  static absl::StatusOr<Context> Read(const RedisOptions& options);

  Reread<Context> context_;
};

class Transport {
 public:
  // Begins to connect. Without `ssl` there is no TLS. kUnavailable.
  static absl::StatusOr<std::unique_ptr<Transport>> Connect(const SocketAddress& address,
                                                            SslHandle ssl);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int fd() const { return fd_; }
  // The events of epoll that it waits for; `has_output`: whether there is something to write.
  uint32_t Awaited(bool has_output) const;

  // Goes on with connecting, then TLS. Whether both are done. kUnavailable; kPermissionDenied: the
  // server is not who it should be.
  absl::StatusOr<bool> Establish();
  // What could be read or written now: 0: nothing. kUnavailable: the connection has ended.
  // REQUIRES: Establish returned true.
  absl::StatusOr<size_t> Read(char* bytes, size_t count);
  absl::StatusOr<size_t> Write(absl::string_view bytes);
  // Whether bytes are here of which no event will tell.
  bool HasUnread() const { return ssl_ != nullptr && SSL_has_pending(ssl_.get()) == 1; }

 private:
  Transport(int fd, SslHandle ssl) : fd_(fd), ssl_(std::move(ssl)) {}
  absl::StatusOr<size_t> SslResult(int result, size_t count);

  const int fd_;
  const SslHandle ssl_;
  bool is_connected_ = false;
  bool tls_writes_ = false;  // TLS must write before it can go on
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_TRANSPORT_H_
