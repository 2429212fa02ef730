#include "cache_store/shared/redis/transport.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"

namespace hearth {
namespace {

absl::Status Broken(int error) {
  return absl::UnavailableError(error == 0 ? "the server closed the connection"
                                           : std::strerror(error));
}

constexpr char kCiphers[] =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr size_t kReadAheadBytes = size_t{128} << 10;

// Returns the errors in OpenSSL's error queue as one text, and empties the queue.
std::string SslErrors() {
  std::string text;
  char line[256];
  while (const unsigned long error = ERR_get_error()) {
    ERR_error_string_n(error, line, sizeof(line));
    absl::StrAppend(&text, text.empty() ? "" : "; ", line);
  }
  return text;
}

absl::Status CannotUse(const std::string& file) {
  return absl::FailedPreconditionError(absl::StrCat("redis: cannot use ", file, ": ", SslErrors()));
}

bool IsAddress(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

absl::StatusOr<SslHandle> TlsContext::Make(const std::string& host) {
  const absl::StatusOr<Context> context = context_.Get();
  if (!context.ok()) return context.status();
  SslHandle ssl(SSL_new(context->get()));
  if (ssl == nullptr) return absl::InternalError(SslErrors());
  if (IsAddress(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), host.c_str());
  } else {
    SSL_set_hostflags(ssl.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    SSL_set1_host(ssl.get(), host.c_str());
    SSL_set_tlsext_host_name(ssl.get(), host.c_str());
  }
  SSL_set_connect_state(ssl.get());
  return ssl;
}

absl::StatusOr<TlsContext::Context> TlsContext::Read(const RedisOptions& options) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(SslErrors());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Prefer AES-128 to AES-256, because TLS takes half of the client's time: values are already
  // encrypted with 256-bit keys, so TLS protects only the names of values. A server with its own
  // preference may choose another cipher suite.
  SSL_CTX_set_ciphersuites(context.get(), kCiphers);
  // Let one socket read fetch several TLS records; otherwise each record takes two reads.
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), kReadAheadBytes);
  // Accept that a connection ends without TLS's close_notify: a reply has its length, so a cut
  // reply is noticed.
  SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
  const std::string& ca = options.ca_file;
  // Check that the files are regular, because OpenSSL would block on a pipe.
  for (const std::string& file : {ca, options.certificate_file, options.key_file}) {
    if (absl::Status found = CheckIsRegular(file); !found.ok()) return found;
  }
  if (ca.empty() ? SSL_CTX_set_default_verify_paths(context.get()) != 1
                 : SSL_CTX_load_verify_file(context.get(), ca.c_str()) != 1) {
    return CannotUse(ca.empty() ? "the system's certificate authorities" : ca);
  }
  const std::string& certificate = options.certificate_file;
  if (certificate.empty()) return context;
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) != 1) {
    return CannotUse(certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return CannotUse(options.key_file);
  }
  return context;
}

absl::StatusOr<std::unique_ptr<Transport>> Transport::Connect(const SocketAddress& address,
                                                              SslHandle ssl) {
  const int fd =
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return Broken(errno);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // On close, discard unsent bytes: they must not arrive minutes later.
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
  return absl::PermissionDeniedError(absl::StrCat("the server's certificate failed verification: ",
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
