// Implements SharedEngine with a Redis Cluster (7.0 or newer) or a single Redis server.
//
// One thread has all connections: to each primary one for short commands and, when first needed,
// one for reading values and one for writing values. A caller waits only for its own keys. Replies
// are verified: a node that breaks the protocol, or does not answer, affects only its own keys.
//
// The Redis user needs access to the keys, and +exists +getrange +set +pexpire +unlink +asking
// +ping +client|setname +cluster|slots. For a cluster that keeps serving while a shard is lost, set
// cluster-require-full-coverage no. Without TLS, a hostile node can name any host as a member of
// the cluster, and this host then receives the password.
//
// Thread safety and errors: see SharedEngine. Destroy the engine only when no call is running.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/shared_engine.h"

namespace hearth {

// Opens a client. Returns immediately: nodes are found in the background, and calls wait for the
// first attempt. kInvalidArgument or kFailedPrecondition: a file of the options cannot be used.
absl::StatusOr<std::unique_ptr<SharedEngine>> OpenRedisCluster(const RedisOptions& options);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_
