// gRPC settings for both ends of Hearth's own connections.
//
// A restore point is megabytes in one stream on a fast network, so frames and windows are large,
// and bandwidth is not probed. Clients reconnect within a second, so that a store that has
// restarted is used again soon.
// Thread safety: pure functions apart from their argument.
#ifndef HEARTH_SERVICES_RPC_TRANSPORT_OPTIONS_H_
#define HEARTH_SERVICES_RPC_TRANSPORT_OPTIONS_H_

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/rpc/client_access.h"

namespace hearth {

inline constexpr int kFirstReconnectBackoffMs = 50;
inline constexpr int kMaxReconnectBackoffMs = 1000;
// When a cache connects to its store, one attempt may take this long.
inline constexpr int kConnectTimeoutMs = 1000;
// A store that disappears without closing its connection is noticed within the sum of the next two
// times.
inline constexpr int kKeepaliveMs = 10000;
inline constexpr int kKeepaliveTimeoutMs = 5000;
// Maximum number of concurrent calls on one connection; more calls wait in the client. A worker has
// one connection to its store, with at most a fetch, a lease and a publish for each running
// request.
inline constexpr int kMaxConnectionStreams = 256;

// `connect_timeout_ms`: time limit of one attempt to connect. If gRPC gets an argument twice, it
// uses the first value.
grpc::ChannelArguments ClientTransport(int connect_timeout_ms = kConnectTimeoutMs);
// `unfinished_bytes`: maximum number of bytes of unfinished messages on all connections together.
void TuneServerTransport(grpc::ServerBuilder* builder, uint64_t unfinished_bytes);

// Returns a new channel to a store at "host:port" or "unix:PATH". Never blocks; the channel
// connects at its first use. An error names the flag of TLS or of the token.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectToStore(const std::string& address,
                                                              const ClientAccess& access = {});

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_TRANSPORT_OPTIONS_H_
