// The shared engine on a Redis Cluster 7.0 or newer, or on one Redis.
//
// One thread has all connections: to each primary one for short commands and, once there are any,
// one for values that are read and one for values that are written. Callers wait for their own keys
// alone. What a node sends is checked, and a node that breaks the protocol, or is silent, costs its
// own keys.
//
// Its user needs the keys and +exists +getrange +set +pexpire +unlink +asking +ping
// +client|setname +cluster|slots. A cluster that serves what it can while a shard is lost has
// cluster-require-full-coverage no. Without TLS a node can name any host as its neighbour, which
// then gets the password.
//
// Thread safety and errors: SharedEngine's. Destroyed when no call is running.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/shared_engine.h"

namespace hearth {

// Returns at once: nodes are found in the background, and calls wait for the first attempt.
// kInvalidArgument, kFailedPrecondition: a file that is named cannot be used.
absl::StatusOr<std::unique_ptr<SharedEngine>> OpenRedisCluster(const RedisOptions& options);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_
