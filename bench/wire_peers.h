// The clients that wire_bench compares with: other ways to move the same bytes, and a copy in
// memory as the upper limit.
//
// Thread safety: one thread per client. An error ends the program, because without the client the
// benchmark has no result.
#ifndef HEARTH_BENCH_WIRE_PEERS_H_
#define HEARTH_BENCH_WIRE_PEERS_H_

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/bare_stream.h"
#include "services/inference/blocking_stream.h"
#include "services/rpc/transport_options.h"
#ifdef HEARTH_BENCH_HIREDIS
#include "bench/bench_redis.h"
#endif

namespace hearth {

inline constexpr int kSlices = 256;
inline constexpr uint64_t kBytes = kSlices * kSliceBytes;  // 256 MiB per measurement

// A client with one connection.
class Client {
 public:
  virtual ~Client() = default;
  // Moves kBytes bytes into memory of this process.
  virtual void Run() = 0;
};

// The upper limit of every fetch: copies the same slices between two buffers of this process.
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
    BlockingStream stream(channel_, method_, &context);
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
  explicit RedisClient(const RedisServer& server) : redis_(server.Connect()), buffer_(kBytes) {}
  void Fill() {
    const std::string value(kSliceBytes, 'x');
    for (int i = 0; i < kSlices; ++i) redis_.Set(std::to_string(i), value);
  }
  void Run() override {
    for (int i = 0; i < kSlices; ++i) {
      redis_.Get(std::to_string(i), buffer_.data() + i * kSliceBytes);
    }
  }

 private:
  RedisConnection redis_;
  std::vector<char> buffer_;
};
#endif

// Receives values by memcached's text protocol directly into the buffer, without another copy.
class MemcachedClient final : public Client {
 public:
  explicit MemcachedClient(int port) : buffer_(kBytes) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    while (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      if (errno != ECONNREFUSED) Fail("connect");
      usleep(20'000);  // wait, because the server is still starting
    }
  }
  ~MemcachedClient() override { close(socket_); }
  void Fill() {
    const std::string value(kSliceBytes, 'x');
    for (int i = 0; i < kSlices; ++i) {
      Send("set " + std::to_string(i) + " 0 0 " + std::to_string(value.size()) + "\r\n" + value +
           "\r\n");
      char answer[8];  // reads the reply "STORED\r\n"
      Receive(answer, sizeof(answer));
      if (std::memcmp(answer, "STORED", 6) != 0) Fail("set");
    }
  }
  void Run() override {
    for (int i = 0; i < kSlices; ++i) {
      Send("get " + std::to_string(i) + "\r\n");
      const std::string head = "VALUE " + std::to_string(i) + " 0 1048576\r\n";
      char answer[64];
      Receive(answer, head.size());
      if (std::memcmp(answer, head.data(), head.size()) != 0) Fail("get");
      Receive(buffer_.data() + i * kSliceBytes, kSliceBytes);
      Receive(answer, 7);  // reads "\r\nEND\r\n" after the value
    }
  }

 private:
  static_assert(kSliceBytes == 1048576);
  [[noreturn]] static void Fail(const char* what) {
    std::fprintf(stderr, "memcached: %s failed\n", what);
    std::exit(1);
  }
  void Send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) Fail("send");
      at += static_cast<size_t>(sent);
    }
  }
  void Receive(char* to, size_t bytes) {
    while (bytes > 0) {
      const ssize_t got = recv(socket_, to, bytes, 0);
      if (got <= 0) Fail("recv");
      to += got;
      bytes -= static_cast<size_t>(got);
    }
  }

  int socket_ = -1;
  std::vector<char> buffer_;
};

// A client that is a program of its own (bench/peers/peer_client.py). The program prints a line
// when it is ready. For each line that it reads, it moves kBytes bytes in values of 1 MiB and then
// prints a line.
class ProgramClient final : public Client {
 public:
  explicit ProgramClient(const std::string& command) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) std::exit(1);
    if (fork() == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (const int end : {in[0], in[1], out[0], out[1]}) close(end);
      execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = fdopen(out[0], "r");
    WaitForLine();
  }
  ~ProgramClient() override {
    close(to_);  // the program ends when its input ends
    std::fclose(from_);
  }
  void Run() override {
    if (write(to_, "go\n", 3) != 3) std::exit(1);
    WaitForLine();
  }

 private:
  void WaitForLine() {
    char line[256];
    if (std::fgets(line, sizeof(line), from_) != nullptr) return;
    std::fprintf(stderr, "the peer's program ended early\n");
    std::exit(1);
  }

  int to_ = -1;
  FILE* from_ = nullptr;
};

}  // namespace hearth

#endif  // HEARTH_BENCH_WIRE_PEERS_H_
