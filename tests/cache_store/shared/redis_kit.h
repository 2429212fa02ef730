// Helpers shared by the tests of the shared engine.
#ifndef HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "cache_store/shared/redis/redis_cluster.h"

namespace hearth {

inline constexpr uint64_t kMaxBytes = 1000;  // limit of one value

// A deadline that only a hang reaches.
inline absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// `addresses`: "HOST:PORT,...".
inline std::unique_ptr<SharedEngine> OpenRedis(const std::string& addresses) {
  return OpenRedisCluster(ParseRedisUrl("redis://" + addresses).value()).value();
}

// As OpenRedis, for tests that do not test silence: on a busy machine, a node may not answer within
// the default half second and would count as silent.
inline std::unique_ptr<SharedEngine> OpenPatiently(const std::string& addresses) {
  RedisOptions options = ParseRedisUrl("redis://" + addresses).value();
  options.connect_wait = options.silence = absl::Seconds(30);
  return OpenRedisCluster(options).value();
}

// Answer of a server without a cluster to CLUSTER SLOTS.
inline constexpr char kNoCluster[] = "-ERR This instance has cluster support disabled\r\n";

// Opens a client of these servers; a server that sends nothing for `silence` counts as silent.
inline std::unique_ptr<SharedEngine> OpenAt(const std::vector<NodeAddress>& addresses,
                                            absl::Duration silence = absl::Milliseconds(300)) {
  RedisOptions options;
  options.addresses = addresses;
  options.silence = silence;
  return OpenRedisCluster(options).value();
}

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_
