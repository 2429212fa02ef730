#include "services/serving/access/server_certificates.h"

#include <grpc/grpc.h>

#include <cassert>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

constexpr absl::Duration kWarnEvery = absl::Hours(24);

// gRPC's C++ credentials keep the files that they were made with. gRPC's core credentials ask for
// the current files at each handshake, so this class wraps them.
class AskingCredentials final : public grpc::ServerCredentials {
 public:
  AskingCredentials(bool asks_clients, grpc_ssl_server_certificate_config_callback ask, void* self)
      : credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                asks_clients ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                ask, self))) {}
  ~AskingCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    assert(false);  // not used, because Identities authenticates callers
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServerCertificates>> ServerCertificates::Open(
    const TlsFiles& files) {
  std::unique_ptr<ServerCertificates> certificates(new ServerCertificates(files));
  if (absl::Status status = certificates->Reload(); !status.ok()) return status;
  certificates->warner_ = std::make_unique<RepeatingThread>([raw = certificates.get()] {
    raw->WarnOfExpiry();
    return kWarnEvery;
  });
  return certificates;
}

absl::Status ServerCertificates::Reload() {
  absl::StatusOr<TlsTexts> texts = ReadTlsFiles(files_);
  if (!texts.ok()) return texts.status();
  absl::MutexLock lock(&mutex_);
  texts_ = std::make_shared<const TlsTexts>(*std::move(texts));
  is_new_ = true;
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> ServerCertificates::credentials() {
  return std::make_shared<AskingCredentials>(!files_.authority.empty(), &Fetch, this);
}

grpc_ssl_certificate_config_reload_status ServerCertificates::Fetch(
    void* self, grpc_ssl_server_certificate_config** config) {
  auto* const certificates = static_cast<ServerCertificates*>(self);
  absl::MutexLock lock(&certificates->mutex_);
  if (!std::exchange(certificates->is_new_, false)) {
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  }
  const TlsTexts& texts = *certificates->texts_;
  const grpc_ssl_pem_key_cert_pair pair = {texts.key.c_str(), texts.certificate.c_str()};
  // gRPC requires root certificates, but uses them only to verify client certificates.
  const std::string& roots = texts.authority.empty() ? texts.certificate : texts.authority;
  *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

void ServerCertificates::WarnOfExpiry() {
  std::vector<CertificateLife> lives;
  {
    absl::MutexLock lock(&mutex_);
    lives = texts_->lives;
  }
  for (const CertificateLife& life : lives) {
    const std::optional<std::string> warning = ExpiryWarning(life, absl::Now());
    if (warning.has_value()) Log(LogLevel::kWarning, "certificate", {{"reason", *warning}});
  }
}

}  // namespace hearth
