// Redis for comparison in benchmarks: starts a redis-server and connects to it.
//
// Thread safety: one thread per connection. An error ends the program, because without Redis the
// benchmark has no result.
#ifndef HEARTH_BENCH_BENCH_REDIS_H_
#define HEARTH_BENCH_BENCH_REDIS_H_

#include <hiredis/hiredis.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bare_stream.h"
#include "bench/bench_kit.h"

namespace hearth {

class RedisConnection {
 public:
  explicit RedisConnection(redisContext* context) : context_(context, redisFree) {
    if (context == nullptr || context->err != 0) Fail("connect");
  }
  void Set(const std::string& key, const std::string& value) {
    SendSet(key, value);
    TakeReply();
  }
  // Gets the value of a key, which has the size of one slice, and copies it to `to`.
  void Get(const std::string& key, char* to) {
    redisAppendCommand(context_.get(), "GET %s", key.c_str());
    const Reply reply = TakeReply();
    if (reply->len != kSliceBytes) Fail("GET");
    std::memcpy(to, reply->str, reply->len);
  }
  // Sends a SET command. TakeReply reads the reply, so that several commands can be in flight.
  void SendSet(const std::string& key, const std::string& value) {
    redisAppendCommand(context_.get(), "SET %s %b", key.c_str(), value.data(), value.size());
  }
  using Reply = std::unique_ptr<redisReply, void (*)(void*)>;
  Reply TakeReply() {
    void* reply = nullptr;
    if (redisGetReply(context_.get(), &reply) != REDIS_OK) Fail("reply");
    Reply owned(static_cast<redisReply*>(reply), freeReplyObject);
    if (owned->type == REDIS_REPLY_ERROR) Fail(owned->str);
    return owned;
  }

 private:
  [[noreturn]] static void Fail(const char* what) {
    std::fprintf(stderr, "redis: %s failed\n", what);
    std::exit(1);
  }

  const std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
};

class RedisServer {
 public:
  enum class Over { kTcp, kUnixSocket };

  // Starts the server and waits until it listens. `settings`: additional arguments. REQUIRES:
  // `folder` exists.
  RedisServer(const std::string& folder, Over over, const std::vector<std::string>& settings)
      : socket_(std::filesystem::absolute(folder) / "redis"),
        port_(over == Over::kTcp ? NextPort() : 0),
        process_(Command(folder, settings)) {
    while (access(socket_.c_str(), F_OK) != 0) {
      if (process_.HasEnded()) {
        std::fprintf(stderr,
                     "redis-server did not start: is it on PATH (Debian's package redis-server), "
                     "and port %d free? Its log is %s/redis.log\n",
                     port_, folder.c_str());
        std::exit(1);
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  RedisConnection Connect() const {
    return RedisConnection(port_ == 0 ? redisConnectUnix(socket_.c_str())
                                      : redisConnect("127.0.0.1", port_));
  }

 private:
  // Returns a port to try: redis-server cannot choose a free port itself.
  static int NextPort() {
    static int servers = 0;
    return 20000 + (getpid() + servers++) % 20000;
  }
  std::vector<std::string> Command(const std::string& folder,
                                   const std::vector<std::string>& settings) const {
    std::vector<std::string> words = {
        "redis-server", "--port", std::to_string(port_), "--unixsocket", socket_,
        "--save",       "",       "--logfile",           "redis.log",    "--dir",
        folder};
    words.insert(words.end(), settings.begin(), settings.end());
    return words;
  }

  const std::string socket_;
  const int port_;
  const Child process_;
};

}  // namespace hearth

#endif  // HEARTH_BENCH_BENCH_REDIS_H_
