#include "bench/shared/bare_redis.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/shared/redis/slot_map.h"

namespace hearth {
namespace {

void Require(bool ok) {
  if (ok) return;
  std::fprintf(stderr, "bare hiredis failed\n");
  std::exit(1);
}

}  // namespace

BenchServers::BenchServers(int count, bool use_tls)
    : use_tls_(use_tls), ca_file_(files_.Write("ca", authority_.certificate())) {
  RedisServers::Options options{count, 0, use_tls};
  if (use_tls) {
    const TestAuthority::Pem pem = authority_.Issue("redis");
    options.settings = {"--tls-cert-file",    files_.Write("crt", pem.certificate),
                        "--tls-key-file",     files_.Write("key", pem.key),
                        "--tls-ca-cert-file", ca_file_,
                        "--tls-auth-clients", "no",
                        "--tls-cluster",      "yes"};
  }
  servers_ = std::make_unique<RedisServers>(options);
}

RedisOptions BenchServers::Client() const {
  if (!use_tls_) return ParseRedisUrl("redis://" + servers_->addresses()).value();
  RedisOptions options =
      ParseRedisUrl(absl::StrCat("rediss://127.0.0.1:", servers_->at(0).tls_port())).value();
  options.ca_file = ca_file_;
  return options;
}

BareRedis::BareRedis(BenchServers* servers) : servers_(servers->servers()) {
  if (servers->use_tls()) {
    tls_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_verify(tls_.get(), SSL_VERIFY_PEER, nullptr);
    Require(SSL_CTX_load_verify_file(tls_.get(), servers->ca_file().c_str()) == 1);
  }
  for (int i = 0; i < servers_->primaries(); ++i) {
    const RedisProcess& server = servers_->at(i);
    const int port = tls_ == nullptr ? server.port() : server.tls_port();
    Node node{{redisConnect("127.0.0.1", port), redisFree}, nullptr, ""};
    Require(node.context != nullptr && node.context->err == 0);
    if (tls_ != nullptr) {
      node.ssl.reset(SSL_new(tls_.get()));
      SSL_set_fd(node.ssl.get(), node.context->fd);
      Require(SSL_connect(node.ssl.get()) == 1);
    }
    nodes_.push_back(std::move(node));
  }
}

std::vector<BareRedis::Reply> BareRedis::Ask(const char* command,
                                             const std::vector<std::string>& keys) {
  std::vector<int> counts(nodes_.size());
  for (const std::string& key : keys) {
    const int node = servers_->ShareOf(KeySlot(key));
    Add(&nodes_[node], command, key);
    ++counts[node];
  }
  for (Node& node : nodes_) Send(&node);
  std::vector<Reply> replies;
  for (size_t node = 0; node < nodes_.size(); ++node) {
    for (int i = 0; i < counts[node]; ++i) {
      replies.push_back(Receive(nodes_[node]));
      Require(replies.back()->type != REDIS_REPLY_ERROR);
    }
  }
  return replies;
}

void BareRedis::Add(Node* node, const char* command, const std::string& key) {
  if (node->ssl == nullptr) {
    redisAppendCommand(node->context.get(), "%s %b", command, key.data(), key.size());
    return;
  }
  char* bytes = nullptr;
  const int count = redisFormatCommand(&bytes, "%s %b", command, key.data(), key.size());
  Require(count > 0);
  node->output.append(bytes, static_cast<size_t>(count));
  redisFreeCommand(bytes);
}

void BareRedis::Send(Node* node) {
  if (node->ssl == nullptr) {
    for (int done = 0; done == 0;)
      Require(redisBufferWrite(node->context.get(), &done) == REDIS_OK);
    return;
  }
  const int bytes = static_cast<int>(node->output.size());
  if (bytes > 0) Require(SSL_write(node->ssl.get(), node->output.data(), bytes) == bytes);
  node->output.clear();
}

BareRedis::Reply BareRedis::Receive(const Node& node) {
  redisContext* const context = node.context.get();
  void* reply = nullptr;
  if (node.ssl == nullptr) Require(redisGetReply(context, &reply) == REDIS_OK);
  std::array<char, 16 * 1024> bytes;
  while (reply == nullptr) {
    Require(redisReaderGetReply(context->reader, &reply) == REDIS_OK);
    if (reply != nullptr) break;
    const int read = SSL_read(node.ssl.get(), bytes.data(), static_cast<int>(bytes.size()));
    Require(read > 0);
    Require(redisReaderFeed(context->reader, bytes.data(), static_cast<size_t>(read)) == REDIS_OK);
  }
  return {static_cast<redisReply*>(reply), freeReplyObject};
}

}  // namespace hearth
