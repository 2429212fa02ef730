// RedisCluster: the shared engine on a Redis Cluster 7.0 or newer, or on one Redis.
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
#include <string>
#include <vector>

#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/shared_engine.h"

namespace hearth {

class ClusterRouter;
class KeyBatch;
struct KeyCommand;
struct RedisParts;

class RedisCluster : public SharedEngine {
 public:
  // Returns at once: nodes are found in the background, and calls wait for the first attempt.
  // kInvalidArgument, kFailedPrecondition: a file that is named cannot be used.
  static absl::StatusOr<std::unique_ptr<RedisCluster>> Open(const RedisOptions& options);
  ~RedisCluster() override;

  std::vector<absl::StatusOr<bool>> Exists(absl::Span<const std::string> keys,
                                           absl::Time deadline) override;
  Later GetLater(std::vector<std::string> keys, uint64_t max_bytes, absl::Time deadline) override;
  std::vector<absl::StatusOr<bool>> Set(absl::Span<const SharedValue> values,
                                        absl::Time deadline) override;
  std::vector<absl::Status> PutOff(absl::Span<const SharedExpiry> expiries,
                                   absl::Time deadline) override;
  std::vector<absl::Status> Erase(absl::Span<const std::string> keys, absl::Time deadline) override;
  void Recycle(std::string value) override;
  SharedEngineStats Stats() const override;

 private:
  explicit RedisCluster(const RedisOptions& options);
  // Returns at once.
  void Submit(const std::shared_ptr<KeyBatch>& batch, absl::Time deadline);
  // Returns when all are finished.
  std::shared_ptr<KeyBatch> Run(std::vector<KeyCommand> commands, absl::Time deadline);

  const std::unique_ptr<RedisParts> parts_;
  const std::unique_ptr<ClusterRouter> router_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_CLUSTER_H_
