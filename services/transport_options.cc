#include "services/transport_options.h"

#include <grpcpp/resource_quota.h>

#include "services/proto_conversion.h"

namespace hearth {
namespace {

// Threads for blocking calls: publishes, fetches, lists. Beyond them gRPC refuses the call.
constexpr int kMaxServerThreads = 256;
// A frame holds a whole piece of a slice: one header and one write a piece.
constexpr int kMaxFrameBytes = 4 << 20;
// What a peer may send before it has to wait for the reader, per stream, and all streams of a
// connection that nobody reads from together.
constexpr int kStreamWindowBytes = 16 << 20;
constexpr int kTcpReadBytes = 1 << 20;
constexpr int kMinTcpReadBytes = 256 << 10;
constexpr int kMaxTcpReadBytes = 8 << 20;

template <typename Set>
void SetCommon(Set set) {
  set("grpc.http2.bdp_probe", 0);
  set("grpc.http2.max_frame_size", kMaxFrameBytes);
  set("grpc.http2.lookahead_bytes", kStreamWindowBytes);
  set("grpc.experimental.tcp_read_chunk_size", kTcpReadBytes);
  set("grpc.experimental.tcp_min_read_chunk_size", kMinTcpReadBytes);
  set("grpc.experimental.tcp_max_read_chunk_size", kMaxTcpReadBytes);
  set("grpc.max_receive_message_length", kMaxGrpcMessageBytes);
}

}  // namespace

grpc::ChannelArguments ClientTransport() {
  grpc::ChannelArguments arguments;
  SetCommon([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt("grpc.initial_reconnect_backoff_ms", kFirstReconnectBackoffMs);
  arguments.SetInt("grpc.max_reconnect_backoff_ms", kMaxReconnectBackoffMs);
  arguments.SetInt("grpc.min_reconnect_backoff_ms", kConnectTimeoutMs);
  arguments.SetInt("grpc.keepalive_time_ms", kKeepaliveMs);
  arguments.SetInt("grpc.keepalive_timeout_ms", kKeepaliveTimeoutMs);
  // The cache decides what a failure means; a retry inside gRPC would hide it and buffer messages.
  arguments.SetInt("grpc.enable_retries", 0);
  return arguments;
}

void TuneServerTransport(grpc::ServerBuilder* builder) {
  SetCommon([&](const char* name, int value) { builder->AddChannelArgument(name, value); });
  builder->AddChannelArgument("grpc.max_concurrent_streams", kMaxConnectionStreams);
  // Keepalive pings of our own clients are not an attack.
  builder->AddChannelArgument("grpc.http2.min_ping_interval_without_data_ms", kKeepaliveMs / 2);
  builder->SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxServerThreads);
  builder->SetResourceQuota(quota);
}

std::shared_ptr<grpc::Channel> ConnectToStore(const std::string& address) {
  return *ConnectToStore(address, ClientAccess());  // without access there is nothing to go wrong
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectToStore(const std::string& address,
                                                              const ClientAccess& access) {
  grpc::ChannelArguments arguments = ClientTransport();
  // Two caches in one process do not share a connection, nor one's backoff.
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  return ConnectAs(access, address, arguments);
}

}  // namespace hearth
