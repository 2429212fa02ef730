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

// Returns a deadline that is reached only if a call hangs.
inline absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// Opens a client. `addresses`: "HOST:PORT,...".
inline std::unique_ptr<SharedEngine> OpenRedis(const std::string& addresses) {
  return OpenRedisCluster(ParseRedisUrl("redis://" + addresses).value()).value();
}

// Opens a client with a long limit of silence, for tests on busy machines: with the default of half
// a second, a busy node would count as silent.
inline std::unique_ptr<SharedEngine> OpenPatiently(const std::string& addresses) {
  RedisOptions options = ParseRedisUrl("redis://" + addresses).value();
  options.connect_wait = options.silence = absl::Seconds(30);
  return OpenRedisCluster(options).value();
}

// Answer to CLUSTER SLOTS of a Redis server without a cluster.
inline constexpr char kNoCluster[] = "-ERR This instance has cluster support disabled\r\n";

// Opens a client for these servers. A server that sends nothing for the time `silence` counts as
// silent.
inline std::unique_ptr<SharedEngine> OpenAt(const std::vector<NodeAddress>& addresses,
                                            absl::Duration silence = absl::Milliseconds(300)) {
  RedisOptions options;
  options.addresses = addresses;
  options.silence = silence;
  return OpenRedisCluster(options).value();
}

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_
