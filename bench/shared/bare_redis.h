// BareRedis: plain hiredis for comparison. One connection to each of several servers; commands are
// pipelined, and answers are read server by server and kept.
//
// Debian's hiredis has no TLS. Here OpenSSL carries the data of hiredis's formatter and reader, in
// reads of 16 KiB, as a hiredis with TLS does. Thread safety: none.
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

// Primaries of a cluster; with TLS they have their own certificates.
class BenchServers {
 public:
  BenchServers(int count, bool use_tls);
  // Options for the engine's client.
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
  // Sends the command for each key. Returns all answers once complete, as the engine does. Errors
  // end the program.
  std::vector<Reply> Ask(const char* command, const std::vector<std::string>& keys);

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  struct Node {
    std::unique_ptr<redisContext, void (*)(redisContext*)> context;
    std::unique_ptr<SSL, FreeSsl> ssl;  // null without TLS
    std::string output;                 // output buffer, if TLS is used
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
