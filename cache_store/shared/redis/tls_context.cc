#include "cache_store/shared/redis/tls_context.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/file_stamp.h"

namespace hearth {
namespace {

constexpr char kCiphers[] =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr size_t kReadAheadBytes = size_t{128} << 10;

absl::Status CannotUse(const std::string& file) {
  return absl::FailedPreconditionError(absl::StrCat("redis: cannot use ", file, ": ", SslErrors()));
}

bool IsAddress(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

std::string SslErrors() {
  std::string text;
  char line[256];
  while (const unsigned long error = ERR_get_error()) {
    ERR_error_string_n(error, line, sizeof(line));
    absl::StrAppend(&text, text.empty() ? "" : "; ", line);
  }
  return text;
}

absl::StatusOr<SslHandle> TlsContext::Make(const std::string& host) {
  if (absl::Status status = Refresh(); context_ == nullptr) return status;
  SslHandle ssl(SSL_new(context_.get()));
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

absl::Status TlsContext::Refresh() {
  std::vector<std::string> stamps;
  for (const std::string& file : {options_.ca_file, options_.certificate_file, options_.key_file}) {
    stamps.push_back(FileStampOf(file));
  }
  if (stamps == stamps_) return status_;
  stamps_ = std::move(stamps);
  absl::StatusOr<Context> context = Read();
  status_ = context.status();
  if (context.ok()) {
    context_ = *std::move(context);
  } else if (context_ != nullptr && options_.on_unusable_file != nullptr) {
    options_.on_unusable_file(status_);
  }
  return status_;
}

absl::StatusOr<TlsContext::Context> TlsContext::Read() const {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::InternalError(SslErrors());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Values are sealed for 256 bits before they come here: TLS hides names, and its half of the
  // client's time. Servers that choose for themselves may choose another.
  SSL_CTX_set_ciphersuites(context.get(), kCiphers);
  // One read of the socket for several records instead of two for each.
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), kReadAheadBytes);
  // A server that closes without TLS's goodbye has closed: an answer's length says if it is whole.
  SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF);
  const std::string& ca = options_.ca_file;
  if (ca.empty() ? SSL_CTX_set_default_verify_paths(context.get()) != 1
                 : SSL_CTX_load_verify_file(context.get(), ca.c_str()) != 1) {
    return CannotUse(ca.empty() ? "the system's authorities" : ca);
  }
  const std::string& certificate = options_.certificate_file;
  if (certificate.empty()) return context;
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) != 1) {
    return CannotUse(certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), options_.key_file.c_str(), SSL_FILETYPE_PEM) !=
      1) {
    return CannotUse(options_.key_file);
  }
  return context;
}

}  // namespace hearth
