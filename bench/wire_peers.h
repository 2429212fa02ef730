// The peers of wire_bench: who else moves the same bytes, and what no mover can beat.
//
// Thread safety: one thread a client. Errors end the program: a benchmark without its peer says
// nothing.
#ifndef HEARTH_BENCH_WIRE_PEERS_H_
#define HEARTH_BENCH_WIRE_PEERS_H_

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/bare_stream.h"
#include "services/blocking_stream.h"
#include "services/transport_options.h"
#ifdef HEARTH_BENCH_HIREDIS
#include <hiredis/hiredis.h>
#endif

namespace hearth {

inline constexpr int kSlices = 256;
inline constexpr uint64_t kBytes = kSlices * kSliceBytes;  // 256 MiB

// One connection.
class Client {
 public:
  virtual ~Client() = default;
  // Moves kBytes into memory of this client.
  virtual void Run() = 0;
};

// What no fetch can beat: the same slices from one warm buffer of this process to another.
class CopyClient final : public Client {
 public:
  CopyClient() : from_(kBytes, 'x'), to_(kBytes, 'y') {}
  void Run() override {
    for (size_t at = 0; at < kBytes; at += kSliceBytes) {
      std::memcpy(to_.data() + at, from_.data() + at, kSliceBytes);
    }
  }

 private:
  std::vector<char> from_, to_;
};

class BareClient final : public Client {
 public:
  BareClient(const std::string& address, const char* method, bool tuned)
      : method_(method), buffer_(kBytes) {
    grpc::ChannelArguments arguments = tuned ? ClientTransport() : grpc::ChannelArguments();
    arguments.SetInt("grpc.use_local_subchannel_pool", 1);
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  void Run() override {
    grpc::ClientContext context;
    BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer> stream(channel_, method_, &context);
    const grpc::Slice word("go", 2);
    stream.WriteLast(grpc::ByteBuffer(&word, 1));
    grpc::ByteBuffer message;
    size_t at = 0;
    while (stream.Read(&message)) {
      std::vector<grpc::Slice> slices;
      (void)message.Dump(&slices);
      for (const grpc::Slice& slice : slices) {
        std::memcpy(buffer_.data() + at, slice.begin(), slice.size());
        at += slice.size();
      }
    }
    if (stream.Finish().ok() && at == kBytes) return;
    std::fprintf(stderr, "bare stream: %zu bytes\n", at);
    std::exit(1);
  }

 private:
  const std::string method_;
  std::shared_ptr<grpc::Channel> channel_;
  std::vector<char> buffer_;
};

#ifdef HEARTH_BENCH_HIREDIS
class RedisClient final : public Client {
 public:
  explicit RedisClient(const std::string& socket_path, int port)
      : redis_(socket_path.empty() ? redisConnect("127.0.0.1", port)
                                   : redisConnectUnix(socket_path.c_str())),
        buffer_(kBytes) {
    if (redis_ == nullptr || redis_->err != 0) std::exit(1);
  }
  ~RedisClient() override { redisFree(redis_); }
  void Fill() {
    const std::string value(kSliceBytes, 'x');
    for (int i = 0; i < kSlices; ++i) {
      freeReplyObject(redisCommand(redis_, "SET %d %b", i, value.data(), value.size()));
    }
  }
  void Run() override {
    for (int i = 0; i < kSlices; ++i) {
      auto* reply = static_cast<redisReply*>(redisCommand(redis_, "GET %d", i));
      if (reply == nullptr || reply->len != kSliceBytes) std::exit(1);
      std::memcpy(buffer_.data() + i * kSliceBytes, reply->str, reply->len);
      freeReplyObject(reply);
    }
  }

 private:
  redisContext* const redis_;
  std::vector<char> buffer_;
};
#endif

}  // namespace hearth

#endif  // HEARTH_BENCH_WIRE_PEERS_H_
