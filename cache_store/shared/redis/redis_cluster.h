// SharedEngine on a Redis Cluster 7.0 or newer, or on one Redis.
//
// One thread has all connections: to each primary one for short commands and, once needed, one for
// values that are read and one for values that are written. A caller waits only for its own keys.
// Replies are checked; a node that breaks the protocol or is silent costs only its own keys.
//
// The Redis user needs the keys and +exists +getrange +set +pexpire +unlink +asking +ping
// +client|setname +cluster|slots. For a cluster that keeps serving while a shard is lost, set
// cluster-require-full-coverage no. Without TLS a node can name any host as its neighbour, which
// then receives the password.
//
// Thread safety and errors: see SharedEngine. Destroy it only when no call is running.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/shared_engine.h"

namespace hearth {

// Returns immediately: nodes are found in the background, and calls wait for the first attempt.
// kInvalidArgument or kFailedPrecondition: a named file cannot be used.
absl::StatusOr<std::unique_ptr<SharedEngine>> OpenRedisCluster(const RedisOptions& options);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_
