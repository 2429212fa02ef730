// ClientAccess: how a client connects to a worker or a store: TLS, and its token.
//
// Thread safety: pure functions; a channel that was made here reads its token file by itself.
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
  bool plaintext_tokens = false;  // a token may cross a network in clear text
  std::string prefix;             // of these flags' names: "store-"
  bool rereads = false;           // a server's: regular files, read again when they change
};

// A channel to `address`; never blocks, connects when used. The token is read again when its file
// changes. The error names the flag.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectAs(const ClientAccess& access,
                                                         const std::string& address,
                                                         const grpc::ChannelArguments& arguments);

// Says that one end of a connection speaks TLS and the other does not, or that a certificate is
// wrong, where gRPC's own words read like a missing server: the mistake behind `error`, gRPC's text
// for the caller with `access`, and which flag mends it. Empty: it is no matter of TLS.
std::string TlsMismatch(absl::string_view error, const ClientAccess& access);

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_CLIENT_ACCESS_H_
