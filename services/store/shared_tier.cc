#include "services/store/shared_tier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/base/secret.h"
#include "cache_store/shared/redis/redis_cluster.h"
#include "cache_store/shared/tier/shared_store.h"

namespace hearth {
namespace {

absl::StatusOr<RedisOptions> RedisOf(const SharedFlags& flags) {
  absl::StatusOr<RedisOptions> redis = ParseRedisUrl(flags.url);
  if (!redis.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--shared: ", redis.status().message()));
  }
  redis->user = flags.user;
  redis->password_file = flags.password_file;
  redis->ca_file = flags.ca_file;
  redis->certificate_file = flags.certificate_file;
  redis->key_file = flags.key_file;
  if (absl::Status status = redis->Validate(); !status.ok()) return status;
  return redis;
}

}  // namespace

void AddSharedFlags(FlagSet* set, SharedFlags* flags) {
  set->AddText("shared", &flags->url,
               "Redis (7.0 or newer; a cluster, or one) that the stores of a fleet share: "
               "redis://HOST:PORT[,HOST:PORT...], rediss:// with TLS; none");
  set->AddText("shared-user", &flags->user, "Its user; empty: Redis's default user");
  set->AddText("shared-password-file", &flags->password_file, "File with the user's password");
  set->AddText("shared-ca", &flags->ca_file,
               "Authority (PEM) of its certificates; empty: the system's");
  set->AddText("shared-cert", &flags->certificate_file, "This store's certificate there (PEM)");
  set->AddText("shared-key", &flags->key_file, "The certificate's key (PEM)");
  set->AddDuration("shared-ttl", &flags->options.ttl,
                   "How long a value stays there since its last use");
  set->AddDuration("shared-fetch-budget", &flags->options.fetch_budget,
                   "A lookup waits no longer for it, all in all");
}

absl::Status CheckSharedFlags(const SharedFlags& flags, const std::string& secret_file) {
  if (!flags.is_on()) return absl::OkStatus();
  if (secret_file.empty()) {
    return absl::InvalidArgumentError(
        "--shared needs --secret-file: each store would make keys of its own, and find nothing of "
        "the others'");
  }
  if (absl::Status status = flags.options.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--shared-", status.message()));
  }
  return RedisOf(flags).status();
}

absl::StatusOr<StoreAndEngine> AddSharedTier(const SharedFlags& flags,
                                             const std::string& secret_file,
                                             std::unique_ptr<TieredStore> store) {
  if (!flags.is_on()) return StoreAndEngine{std::move(store), nullptr};
  const absl::StatusOr<std::string> secret = ReadSecret(secret_file);
  if (!secret.ok()) return secret.status();
  const absl::StatusOr<RedisOptions> redis = RedisOf(flags);
  if (!redis.ok()) return redis.status();
  absl::StatusOr<std::unique_ptr<RedisCluster>> engine = RedisCluster::Open(*redis);
  if (!engine.ok()) return engine.status();
  StoreAndEngine shared;
  shared.engine = engine->get();
  shared.store =
      std::make_unique<SharedStore>(std::move(store), *std::move(engine), *secret, flags.options);
  return shared;
}

std::vector<MetricSample> SharedEngineSamples(const SharedEngine* engine) {
  const SharedEngineStats stats = engine == nullptr ? SharedEngineStats() : engine->Stats();
  return {
      MetricSample::Gauge("hearth_store_shared_shards",
                          "Primaries of the engine that stores share.", stats.shards),
      MetricSample::Gauge("hearth_store_shared_reachable_shards",
                          "Of those, the ones that a connection stands to.", stats.reachable),
      MetricSample::Count("hearth_store_shared_round_trips_total", "Round trips to the engine.",
                          stats.round_trips),
      MetricSample::Count("hearth_store_shared_redirections_total",
                          "Keys that the engine sent elsewhere.", stats.redirections),
      MetricSample::Count("hearth_store_shared_reconnects_total",
                          "Connections to the engine made anew.", stats.reconnects),
      MetricSample::Count("hearth_store_shared_failed_total", "Keys that the engine did not serve.",
                          stats.failed),
  };
}

}  // namespace hearth
