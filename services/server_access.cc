#include "services/server_access.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/access_files.h"

namespace hearth {
namespace {

// A caller without a certificate gets through the handshake: health answers it, the services refuse
// it, and a token may do instead.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TransportOf(const AccessFlags& flags) {
  if (flags.tls_cert.empty() != flags.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together; one is missing");
  }
  if (flags.tls_cert.empty()) {
    if (!flags.tls_client_ca.empty()) {
      return absl::InvalidArgumentError("--tls-client-ca needs --tls-cert and --tls-key");
    }
    return grpc::InsecureServerCredentials();
  }
  grpc::SslServerCredentialsOptions options(flags.tls_client_ca.empty()
                                                ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  absl::StatusOr<std::string> cert = ReadFlagFile("tls-cert", flags.tls_cert);
  if (!cert.ok()) return cert.status();
  absl::StatusOr<std::string> key = ReadFlagFile("tls-key", flags.tls_key);
  if (!key.ok()) return key.status();
  options.pem_key_cert_pairs.push_back({*std::move(key), *std::move(cert)});
  if (!flags.tls_client_ca.empty()) {
    absl::StatusOr<std::string> authority = ReadFlagFile("tls-client-ca", flags.tls_client_ca);
    if (!authority.ok()) return authority.status();
    options.pem_root_certs = *std::move(authority);
  }
  return grpc::SslServerCredentials(options);
}

}  // namespace

absl::StatusOr<ServerAccess> OpenAccess(const AccessFlags& flags, const std::string& listen) {
  ServerAccess access;
  auto credentials = TransportOf(flags);
  if (!credentials.ok()) return credentials.status();
  access.credentials = *std::move(credentials);
  Identities::Options options;
  options.file = flags.identities_file;
  options.certificates = !flags.tls_client_ca.empty();
  auto identities = Identities::Open(options);
  if (!identities.ok()) {
    return absl::Status(identities.status().code(),
                        absl::StrCat("--identities-file: ", identities.status().message()));
  }
  access.identities = *std::move(identities);
  if (access.identities->asks_for_tokens() && flags.tls_cert.empty() && !flags.plaintext_tokens &&
      !StaysOnHost(listen)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--identities-file: tokens would reach ", listen,
        " in clear text; give --tls-cert and --tls-key, or --plaintext-tokens on where the network "
        "itself is encrypted"));
  }
  return access;
}

}  // namespace hearth
