#include "services/rpc/transport_options.h"

#include <grpcpp/resource_quota.h>

#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

// Maximum number of threads for blocking calls. If all are in use, gRPC refuses a call.
constexpr int kMaxServerThreads = 256;
// A frame holds a whole piece of a slice, so that a piece needs only one frame header and one
// write.
constexpr int kMaxFrameBytes = 4 << 20;
// A store may send this many bytes on a stream before the worker reads them.
constexpr int kStreamWindowBytes = 16 << 20;
constexpr int kTcpReadBytes = 1 << 20;
constexpr int kMinTcpReadBytes = 256 << 10;
constexpr int kMaxTcpReadBytes = 8 << 20;
// Window for messages from a caller to a server. gRPC holds a buffer until the last message in it
// is complete, so this window is smaller. A much smaller window would slow down publishes.
constexpr int kServerStreamWindowBytes = 2 << 20;
constexpr int kServerTcpReadBytes = 256 << 10;
constexpr int kServerMinTcpReadBytes = 16 << 10;
constexpr int kServerMaxTcpReadBytes = 1 << 20;
constexpr int kHandshakeTimeoutMs = 10000;
// Memory quota of gRPC in a server, in addition to unfinished messages: for connections, calls and
// partly used buffers. At the quota gRPC ends calls of any caller, so ConnectionTracker must act
// before.
constexpr uint64_t kConnectionsBytes = uint64_t{64} << 20;

template <typename Set>
void SetCommon(Set set) {
  set("grpc.http2.bdp_probe", 0);
  set("grpc.http2.max_frame_size", kMaxFrameBytes);
  set("grpc.max_receive_message_length", kMaxGrpcMessageBytes);
}

}  // namespace

grpc::ChannelArguments ClientTransport(int connect_timeout_ms) {
  grpc::ChannelArguments arguments;
  SetCommon([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt("grpc.http2.lookahead_bytes", kStreamWindowBytes);
  arguments.SetInt("grpc.experimental.tcp_read_chunk_size", kTcpReadBytes);
  arguments.SetInt("grpc.experimental.tcp_min_read_chunk_size", kMinTcpReadBytes);
  arguments.SetInt("grpc.experimental.tcp_max_read_chunk_size", kMaxTcpReadBytes);
  arguments.SetInt("grpc.initial_reconnect_backoff_ms", kFirstReconnectBackoffMs);
  arguments.SetInt("grpc.max_reconnect_backoff_ms", kMaxReconnectBackoffMs);
  arguments.SetInt("grpc.min_reconnect_backoff_ms", connect_timeout_ms);
  arguments.SetInt("grpc.keepalive_time_ms", kKeepaliveMs);
  arguments.SetInt("grpc.keepalive_timeout_ms", kKeepaliveTimeoutMs);
  // Do not let gRPC retry: the cache decides what a failure means, and retries would hide it and
  // buffer messages.
  arguments.SetInt("grpc.enable_retries", 0);
  return arguments;
}

void TuneServerTransport(grpc::ServerBuilder* builder, uint64_t unfinished_bytes) {
  const auto set = [builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  };
  SetCommon(set);
  set("grpc.http2.lookahead_bytes", kServerStreamWindowBytes);
  set("grpc.experimental.tcp_read_chunk_size", kServerTcpReadBytes);
  set("grpc.experimental.tcp_min_read_chunk_size", kServerMinTcpReadBytes);
  set("grpc.experimental.tcp_max_read_chunk_size", kServerMaxTcpReadBytes);
  set("grpc.server_handshake_timeout_ms", kHandshakeTimeoutMs);
  builder->AddChannelArgument("grpc.max_concurrent_streams", kMaxConnectionStreams);
  // Answer all pings; ConnectionTracker closes connections whose bytes no call consumes. gRPC's own
  // defence costs ten times as much as the pings: each ping after the third adds an error of some
  // kilobytes to the previous errors, and a read of 256 KiB holds 15,000 pings.
  builder->AddChannelArgument("grpc.http2.max_ping_strikes", 0);
  builder->SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  // Disable compression: gRPC limits only the compressed size of a message, and 3 MiB of zeros
  // would unpack to 3 GiB.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  set("grpc.per_message_decompression", 0);
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxServerThreads);
  quota.Resize(unfinished_bytes + kConnectionsBytes);
  builder->SetResourceQuota(quota);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectToStore(const std::string& address,
                                                              const ClientAccess& access) {
  grpc::ChannelArguments arguments = ClientTransport();
  // Two caches in one process must share neither a connection nor its reconnect backoff.
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  return ConnectAs(access, address, arguments);
}

}  // namespace hearth
