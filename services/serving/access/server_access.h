// ServerAccess: how a server authenticates itself and its callers, from its flags: TLS certificates
// and identities.
//
// Thread safety: called from main. Ownership: the caller's; identities must outlive the services.
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
  std::shared_ptr<grpc::ServerCredentials> credentials;  // made from `certificates`; null: no TLS
  std::unique_ptr<Identities> identities;

  // Reads all files again. An invalid file is logged and changes nothing. From any thread.
  void Reload() const;
};

// Reads the files that the flags name. `http_listen`: address on which HTTP callers send tokens;
// empty: none. An error names the flag and what to do: one flag of a pair is missing, a file is
// unreadable or invalid, or tokens would cross a network in clear text.
absl::StatusOr<ServerAccess> OpenAccess(const AccessFlags& flags, const std::string& listen,
                                        const std::string& http_listen = "");

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_SERVER_ACCESS_H_
