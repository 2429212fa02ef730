// ServerAccess: a server's demands on its callers, from its flags: TLS, and identities.
//
// Thread safety: called from main. Ownership: the caller's; identities outlive the services.
#ifndef HEARTH_SERVICES_SERVING_ACCESS_SERVER_ACCESS_H_
#define HEARTH_SERVICES_SERVING_ACCESS_SERVER_ACCESS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/serving/access/identity.h"
#include "services/serving/access/server_certificates.h"
#include "services/serving/flags.h"

namespace hearth {

struct ServerAccess {
  std::unique_ptr<ServerCertificates> certificates;      // null: no TLS
  std::shared_ptr<grpc::ServerCredentials> credentials;  // of those; null: no TLS
  std::unique_ptr<Identities> identities;

  // Reads all files again; an invalid one is logged and changes nothing. From any thread.
  void Reload() const;
};

// The error names the flag and what to do: half of a pair, a file that is unreadable or of the
// wrong kind, tokens that would cross a network in clear text.
// `http_listen`: where tokens come by HTTP; empty: nowhere.
absl::StatusOr<ServerAccess> OpenAccess(const AccessFlags& flags, const std::string& listen,
                                        const std::string& http_listen = "");

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_SERVER_ACCESS_H_
