// BareRedis: plain hiredis, for comparison with the engine's Redis client. Has one connection to
// each of several servers. Sends commands without waiting for replies, then reads the replies
// server by server and keeps them.
//
// Debian's hiredis is built without TLS. With TLS, OpenSSL transports the bytes of hiredis's
// formatter and reader, in reads of 16 KiB, as a hiredis with TLS would. Thread safety: none.
#ifndef HEARTH_BENCH_SHARED_BARE_REDIS_H_
#define HEARTH_BENCH_SHARED_BARE_REDIS_H_

#include <hiredis/hiredis.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <vector>

#include "cache_store/shared/redis/redis_options.h"
#include "tests/cache_store/shared/redis_servers.h"
#include "tests/support/test_certificates.h"

namespace hearth {

// Starts the primaries of a Redis cluster. With TLS they have certificates made for the benchmark.
class BenchServers {
 public:
  BenchServers(int count, bool use_tls);
  // Returns the options for the engine's Redis client to use these servers.
  RedisOptions Client() const;
  RedisServers* servers() { return servers_.get(); }
  bool use_tls() const { return use_tls_; }
  const std::string& ca_file() const { return ca_file_; }

 private:
  const bool use_tls_;
  TestAuthority authority_;
  const SecretFolder files_;
  const std::string ca_file_;
  std::unique_ptr<RedisServers> servers_;
};

class BareRedis {
 public:
  explicit BareRedis(BenchServers* servers);
  using Reply = std::unique_ptr<redisReply, void (*)(void*)>;
  // Sends the command once for each key. Returns when all replies have arrived, as the engine does.
  // An error ends the program.
  std::vector<Reply> Ask(const char* command, const std::vector<std::string>& keys);

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  struct Node {
    std::unique_ptr<redisContext, void (*)(redisContext*)> context;
    std::unique_ptr<SSL, FreeSsl> ssl;  // null if TLS is not used
    std::string output;                 // bytes to send, if TLS is used
  };
  void Add(Node* node, const char* command, const std::string& key);
  void Send(Node* node);
  Reply Receive(const Node& node);

  RedisServers* const servers_;
  std::unique_ptr<SSL_CTX, FreeSsl> tls_;
  std::vector<Node> nodes_;
};

}  // namespace hearth

#endif  // HEARTH_BENCH_SHARED_BARE_REDIS_H_
