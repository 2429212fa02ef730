#include "cache_store/shared/redis/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::Status Broken(int error) {
  return absl::UnavailableError(error == 0 ? "the server closed the connection"
                                           : std::strerror(error));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> Transport::Connect(const SocketAddress& address,
                                                              SslHandle ssl) {
  const int fd =
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return Broken(errno);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // What was not sent when it is closed is not to arrive minutes later.
  const linger none = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  if (ssl != nullptr) SSL_set_fd(ssl.get(), fd);
  std::unique_ptr<Transport> transport(new Transport(fd, std::move(ssl)));
  const auto* to = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(fd, to, address.bytes) != 0 && errno != EINPROGRESS) return Broken(errno);
  return transport;
}

Transport::~Transport() { close(fd_); }

uint32_t Transport::Awaited(bool has_output) const {
  if (!is_connected_) return EPOLLOUT;
  return EPOLLIN | (has_output || tls_writes_ ? EPOLLOUT : 0u);
}

absl::StatusOr<bool> Transport::Establish() {
  if (!is_connected_) {
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) return Broken(error);
    sockaddr_storage peer;
    socklen_t peer_bytes = sizeof(peer);
    if (getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0) return false;
    is_connected_ = true;
  }
  if (ssl_ == nullptr) return true;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    tls_writes_ = false;
    return true;
  }
  const absl::StatusOr<size_t> again = SslResult(result, 0);
  if (again.ok()) return false;
  const long verified = SSL_get_verify_result(ssl_.get());
  if (verified == X509_V_OK) return again.status();
  return absl::PermissionDeniedError(absl::StrCat("the server's certificate is refused: ",
                                                  X509_verify_cert_error_string(verified)));
}

absl::StatusOr<size_t> Transport::SslResult(int result, size_t count) {
  tls_writes_ = false;
  if (result == 1) return count;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return size_t{0};
    case SSL_ERROR_WANT_WRITE:
      tls_writes_ = true;
      return size_t{0};
    case SSL_ERROR_ZERO_RETURN:
      return Broken(0);
    case SSL_ERROR_SYSCALL:
      return Broken(errno);
    default:
      return absl::UnavailableError(absl::StrCat("TLS: ", SslErrors()));
  }
}

absl::StatusOr<size_t> Transport::Read(char* bytes, size_t count) {
  if (ssl_ != nullptr) {
    size_t read = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl_.get(), bytes, count, &read);
    return SslResult(result, read);
  }
  const ssize_t read = recv(fd_, bytes, count, 0);
  if (read > 0) return static_cast<size_t>(read);
  if (read == 0) return Broken(0);
  if (errno == EAGAIN || errno == EINTR) return size_t{0};
  return Broken(errno);
}

absl::StatusOr<size_t> Transport::Write(absl::string_view bytes) {
  if (ssl_ != nullptr) {
    size_t written = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
    return SslResult(result, written);
  }
  const ssize_t written = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (written >= 0) return static_cast<size_t>(written);
  if (errno == EAGAIN || errno == EINTR) return size_t{0};
  return Broken(errno);
}

}  // namespace hearth
