// Helpers shared by the tests of the shared engine.
#ifndef HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "cache_store/shared/redis/redis_cluster.h"

namespace hearth {

inline constexpr uint64_t kMaxBytes = 1000;  // limit of one value

// Returns a deadline that is reached only if a call hangs.
inline absl::Time Soon() { return absl::Now() + absl::Minutes(2); }

// Limit of silence for a client that must notice a silent server. The limit is longer than the
// stalls of a busy machine.
inline constexpr absl::Duration kShortSilence = absl::Seconds(2);

// Returns options with long time limits: with the defaults, a server on a busy machine would count
// as silent.
inline RedisOptions Patient(RedisOptions options, absl::Duration silence = absl::Minutes(1)) {
  options.connect_wait = absl::Minutes(1);
  options.silence = silence;
  return options;
}

// Opens a client. `addresses`: "HOST:PORT,...". A server that sends nothing for the time `silence`
// counts as silent.
inline std::unique_ptr<SharedEngine> OpenRedis(const std::string& addresses,
                                               absl::Duration silence = absl::Minutes(1)) {
  const RedisOptions options = ParseRedisUrl("redis://" + addresses).value();
  return OpenRedisCluster(Patient(options, silence)).value();
}

// Answer to CLUSTER SLOTS of a Redis server without a cluster.
inline constexpr char kNoCluster[] = "-ERR This instance has cluster support disabled\r\n";

// Opens a client for these servers, like OpenRedis.
inline std::unique_ptr<SharedEngine> OpenAt(const std::vector<NodeAddress>& addresses,
                                            absl::Duration silence = absl::Minutes(1)) {
  RedisOptions options;
  options.addresses = addresses;
  return OpenRedisCluster(Patient(options, silence)).value();
}

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_SHARED_REDIS_KIT_H_
