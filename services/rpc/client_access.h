// ClientAccess: how a client connects to a worker or a store: TLS and a token.
//
// Thread safety: pure functions; a channel made here reads its token file by itself.
#ifndef HEARTH_SERVICES_RPC_CLIENT_ACCESS_H_
#define HEARTH_SERVICES_RPC_CLIENT_ACCESS_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

struct ClientAccess {
  std::string tls_ca;  // empty: no TLS
  std::string tls_cert, tls_key;
  std::string token_file;
  bool plaintext_tokens = false;  // allow a token without TLS over a network
  std::string prefix;             // prefix of the flags in errors: "store-"
  // Files must be regular files, and are read again when they change.
  bool rereads = false;
};

// Returns a channel to `address`. Never blocks; the channel connects at its first use. If the token
// file changes, the token is read again. An error names the flag.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectAs(const ClientAccess& access,
                                                         const std::string& address,
                                                         const grpc::ChannelArguments& arguments);

// Explains an error that TLS caused: only one of client and server uses TLS, or a certificate is
// wrong. In these cases gRPC's own message looks like a missing server. `error`: gRPC's text for a
// caller with `access`. Returns the mistake and the flag that corrects it; empty if TLS is not the
// cause.
std::string TlsMismatch(absl::string_view error, const ClientAccess& access);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_CLIENT_ACCESS_H_
