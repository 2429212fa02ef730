// What the tests of the shared engine have in common.
#ifndef HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "cache_store/shared/redis/redis_cluster.h"

namespace hearth {

inline constexpr uint64_t kMaxBytes = 1000;  // of a value

// Only a hang takes so long.
inline absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// `addresses`: "HOST:PORT,...".
inline std::unique_ptr<SharedEngine> OpenRedis(const std::string& addresses) {
  return OpenRedisCluster(ParseRedisUrl("redis://" + addresses).value()).value();
}

// The same, for tests that are about no silence: a busy machine may take longer than the half
// second after which a node counts as silent.
inline std::unique_ptr<SharedEngine> OpenPatiently(const std::string& addresses) {
  RedisOptions options = ParseRedisUrl("redis://" + addresses).value();
  options.connect_wait = options.silence = absl::Seconds(30);
  return OpenRedisCluster(options).value();
}

// What a server without a cluster says when it is asked for its slots.
inline constexpr char kNoCluster[] = "-ERR This instance has cluster support disabled\r\n";

// A client of these servers that counts as silent who says nothing for so long.
inline std::unique_ptr<SharedEngine> OpenAt(const std::vector<NodeAddress>& addresses,
                                            absl::Duration silence = absl::Milliseconds(300)) {
  RedisOptions options;
  options.addresses = addresses;
  options.silence = silence;
  return OpenRedisCluster(options).value();
}

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_
