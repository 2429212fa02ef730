// Says that one end of a connection speaks TLS and the other does not, or that a certificate is
// wrong, where gRPC's own words read like a missing server.
//
// A pure function.
#ifndef HEARTH_SERVICES_RPC_TLS_MISMATCH_H_
#define HEARTH_SERVICES_RPC_TLS_MISMATCH_H_

#include <string>

#include "absl/strings/string_view.h"
#include "services/rpc/client_access.h"

namespace hearth {

// The mistake behind `error`, gRPC's text for the caller with `access`, and which flag mends it.
// Empty: it is no matter of TLS.
std::string TlsMismatch(absl::string_view error, const ClientAccess& access);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_TLS_MISMATCH_H_
