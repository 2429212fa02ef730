// Tunes both ends of Hearth's own connections.
//
// Snapshots are megabytes in one stream on a fast network: large frames and windows, no bandwidth
// probes. Reconnecting is quick: a store that comes back is used within a second.
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
// Time limit of one attempt of a cache to connect.
inline constexpr int kConnectTimeoutMs = 1000;
// If a store is lost without closing its connection, this is noticed within the sum of these times.
inline constexpr int kKeepaliveMs = 10000;
inline constexpr int kKeepaliveTimeoutMs = 5000;
// Most concurrent calls on one connection; more calls wait in the client. A worker has one
// connection to its store, with at most a fetch, a lease and a publish for each running request.
inline constexpr int kMaxConnectionStreams = 256;

// `connect_timeout_ms`: limit of one attempt to connect. gRPC uses the first value of an argument.
grpc::ChannelArguments ClientTransport(int connect_timeout_ms = kConnectTimeoutMs);
// `unfinished_bytes`: most bytes that unfinished messages may hold, all connections together.
void TuneServerTransport(grpc::ServerBuilder* builder, uint64_t unfinished_bytes);

// Returns a new channel to a store: "host:port" or "unix:PATH". Never blocks; the channel connects
// when used. An error names the flag of TLS or of the token.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectToStore(const std::string& address,
                                                              const ClientAccess& access = {});

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_TRANSPORT_OPTIONS_H_
