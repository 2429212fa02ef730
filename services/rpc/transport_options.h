// Tuning of both ends of Hearth's own connections, in one place.
//
// Snapshots are megabytes in one stream on a fast network: large frames and windows, no probing for
// the bandwidth. Reconnecting is quick: a store that comes back is used within a second.
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
// How long one attempt of a cache to connect may take.
inline constexpr int kConnectTimeoutMs = 1000;
// The loss of a store that did not close its connection is noticed within the sum of these.
inline constexpr int kKeepaliveMs = 10000;
inline constexpr int kKeepaliveTimeoutMs = 5000;
// Calls that a server takes at a time on one connection; more wait in the client. A worker has one
// connection to its store, and at most a fetch, a lease and a publish for each request it runs.
inline constexpr int kMaxConnectionStreams = 256;

// `connect_timeout_ms`: of one attempt. Of arguments that are set twice gRPC takes the first.
grpc::ChannelArguments ClientTransport(int connect_timeout_ms = kConnectTimeoutMs);
// `unfinished_bytes`: the most that unfinished messages may hold, of all connections together.
void TuneServerTransport(grpc::ServerBuilder* builder, uint64_t unfinished_bytes);

// A new channel to a store: "host:port" or "unix:PATH". Never blocks; connects when used. The error
// names the flag of TLS or of a token; without `access` there is none.
absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectToStore(const std::string& address,
                                                              const ClientAccess& access = {});

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_TRANSPORT_OPTIONS_H_
