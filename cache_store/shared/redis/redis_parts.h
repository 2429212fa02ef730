// RedisParts: what all connections of one client share.
//
// Thread safety: the loop's thread, counters apart. Ownership: RedisCluster's; it outlives all who
// use it.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_PARTS_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_PARTS_H_

#include <atomic>
#include <cstdint>

#include "cache_store/base/reread_file.h"
#include "cache_store/shared/redis/event_loop.h"
#include "cache_store/shared/redis/host_resolver.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/redis/redis_reply.h"
#include "cache_store/shared/redis/transport.h"

namespace hearth {

struct RedisCounters {
  std::atomic<uint32_t> shards{0}, reachable{0}, nodes{0};
  std::atomic<uint64_t> round_trips{0}, redirections{0}, reconnects{0}, failed{0};
  std::atomic<uint64_t> sent_bytes{0};
};

struct RedisParts {
  explicit RedisParts(const RedisOptions& given)
      : options(given),
        resolver(&loop),
        tls(options),
        password(
            {options.password_file}, [this] { return ReadPassword(options.password_file); },
            options.on_unusable_file) {}
  RedisParts(const RedisParts&) = delete;
  RedisParts& operator=(const RedisParts&) = delete;

  const RedisOptions options;
  EventLoop loop;
  HostResolver resolver;
  TlsContext tls;
  RereadFile password;  // "" where there is none
  TextPool texts;
  RedisCounters counters;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_PARTS_H_
