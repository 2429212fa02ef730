// Why a connection by TLS, or without it, did not come about, in words that say what to do.
//
// Thread safety: pure functions; one asks the peer once more.
#ifndef HEARTH_SERVICES_HEARTHCTL_TLS_MISMATCH_H_
#define HEARTH_SERVICES_HEARTHCTL_TLS_MISMATCH_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace hearth {

// What gRPC says of a channel that does not connect; a second at most.
std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel);

// What `error`, gRPC's text, says of TLS; empty: nothing. `has_tls`: on this side.
std::string TlsMismatch(absl::string_view error, bool has_tls);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_TLS_MISMATCH_H_
