#include "services/serving/access/server_access.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/access_files.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

// Returns the certificates, or null if TLS is off. Clients without a certificate pass the
// handshake, so that health checks are answered; the other services refuse a caller that sends no
// token either.
absl::StatusOr<std::unique_ptr<ServerCertificates>> CertificatesOf(const AccessFlags& flags) {
  if (flags.tls_cert.empty() != flags.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key must be given together");
  }
  if (flags.tls_cert.empty()) {
    if (flags.tls_client_ca.empty()) return nullptr;
    return absl::InvalidArgumentError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  return ServerCertificates::Open(
      {"tls-cert", flags.tls_cert, "tls-key", flags.tls_key, "tls-client-ca", flags.tls_client_ca});
}

}  // namespace

absl::StatusOr<ServerAccess> OpenAccess(const AccessFlags& flags, const std::string& listen,
                                        const std::string& http_listen) {
  ServerAccess access;
  auto certificates = CertificatesOf(flags);
  if (!certificates.ok()) return certificates.status();
  access.certificates = *std::move(certificates);
  if (access.certificates != nullptr) access.credentials = access.certificates->credentials();
  Identities::Options options;
  options.file = flags.identities_file;
  options.certificates = !flags.tls_client_ca.empty();
  auto identities = Identities::Open(options);
  if (!identities.ok()) {
    return absl::Status(identities.status().code(),
                        absl::StrCat("--identities-file: ", identities.status().message()));
  }
  access.identities = *std::move(identities);
  for (const std::string& address : {listen, http_listen}) {
    if (!access.identities->has_tokens() || !flags.tls_cert.empty() || flags.plaintext_tokens ||
        address.empty() || StaysOnHost(address)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--identities-file: tokens would reach ", address,
                     " in clear text; give --tls-cert and --tls-key, or --plaintext-tokens on if "
                     "the network is encrypted"));
  }
  return access;
}

void ServerAccess::Reload() const {
  if (certificates != nullptr) {
    const absl::Status status = certificates->Reload();
    if (status.ok()) {
      Log(LogLevel::kInfo, "certificates reloaded");
    } else {
      Log(LogLevel::kError, "reloading the certificates failed; keeping the previous ones",
          {{"reason", std::string(status.message())}});
    }
  }
  identities->Reload();
}

}  // namespace hearth
