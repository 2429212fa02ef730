#include "services/store/shared_tier.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cache_store/base/secret.h"
#include "cache_store/shared/redis/redis_cluster.h"
#include "cache_store/shared/tier/shared_store.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

constexpr absl::Duration kWatchEvery = absl::Seconds(1);

struct FlagText {
  const char* flag;
  const std::string& text;
  bool is_file, is_tls;
};

std::vector<FlagText> TextsOf(const SharedFlags& flags) {
  return {{"--shared-user", flags.user, false, false},
          {"--shared-password-file", flags.password_file, true, false},
          {"--shared-ca", flags.ca_file, true, true},
          {"--shared-cert", flags.certificate_file, true, true},
          {"--shared-key", flags.key_file, true, true}};
}

absl::Status Refuse(absl::string_view text) { return absl::InvalidArgumentError(text); }

// If the tier is off, its flags are an error, because the operator thinks that the tier is on.
absl::Status CheckUnused(const SharedFlags& flags) {
  const SharedOptions defaults;
  const auto has_no_effect = [](const char* flag) {
    return Refuse(absl::StrCat(flag, " has no effect with --shared none"));
  };
  for (const FlagText& text : TextsOf(flags)) {
    if (!text.text.empty()) return has_no_effect(text.flag);
  }
  if (flags.options.ttl != defaults.ttl) return has_no_effect("--shared-ttl");
  if (flags.options.fetch_budget != defaults.fetch_budget) {
    return has_no_effect("--shared-fetch-budget");
  }
  return absl::OkStatus();
}

absl::StatusOr<RedisOptions> RedisOf(const SharedFlags& flags) {
  absl::StatusOr<RedisOptions> redis = ParseRedisUrl(flags.url);
  if (!redis.ok()) return Refuse(absl::StrCat("--shared: ", redis.status().message()));
  for (const FlagText& text : TextsOf(flags)) {
    if (!text.is_tls || text.text.empty() || redis->use_tls) continue;
    return Refuse(
        absl::StrCat(text.flag, " ", text.text, " needs TLS: write --shared rediss://HOST:PORT"));
  }
  const auto needs = [](const char* flag, const std::string& text, const char* other) {
    return Refuse(absl::StrCat(flag, " ", text, " needs ", other));
  };
  if (flags.certificate_file.empty() && !flags.key_file.empty()) {
    return needs("--shared-key", flags.key_file, "--shared-cert");
  }
  if (flags.key_file.empty() && !flags.certificate_file.empty()) {
    return needs("--shared-cert", flags.certificate_file, "--shared-key");
  }
  if (!flags.user.empty() && flags.password_file.empty()) {
    return needs("--shared-user", flags.user, "--shared-password-file");
  }
  redis->user = flags.user;
  redis->password_file = flags.password_file;
  redis->ca_file = flags.ca_file;
  redis->certificate_file = flags.certificate_file;
  redis->key_file = flags.key_file;
  return redis;
}

// Returns the error of a file, with the name of the flag that set the file.
absl::Status ByFlag(const SharedFlags& flags, const absl::Status& status) {
  const char* of = "--shared";
  for (const FlagText& text : TextsOf(flags)) {
    const bool is_named = !text.text.empty() && absl::StrContains(status.message(), text.text);
    if (text.is_file && is_named) of = text.flag;
  }
  return absl::Status(status.code(), absl::StrCat(of, ": ", status.message()));
}

}  // namespace

void AddSharedFlags(FlagSet* set, SharedFlags* flags) {
  set->AddText("shared", &flags->url,
               "Redis (7.0 or newer; a server or a cluster) that the stores of a fleet share: "
               "redis://HOST:PORT[,HOST:PORT...], or rediss:// for TLS; none: no shared tier");
  set->AddText("shared-user", &flags->user, "Redis user; empty: Redis's default user");
  set->AddText("shared-password-file", &flags->password_file,
               "File with the password of the Redis user");
  set->AddText(
      "shared-ca", &flags->ca_file,
      "Authority (PEM) that signed the Redis certificates; empty: the system's authorities");
  set->AddText("shared-cert", &flags->certificate_file, "This store's certificate for Redis (PEM)");
  set->AddText("shared-key", &flags->key_file, "Private key of --shared-cert (PEM)");
  set->AddDuration("shared-ttl", &flags->options.ttl,
                   "Time that a value stays in Redis after its last use");
  set->AddDuration("shared-fetch-budget", &flags->options.fetch_budget,
                   "Maximum total time that a lookup waits for Redis");
}

absl::Status CheckSharedFlags(const SharedFlags& flags, const std::string& secret_file) {
  if (!flags.is_on()) return CheckUnused(flags);
  if (secret_file.empty()) {
    return Refuse(
        "--shared needs --secret-file, the same file at all stores: stores with different secrets "
        "cannot find entries of each other");
  }
  if (absl::Status status = flags.options.Validate(); !status.ok()) {
    // The message is "FIELD: ...", such as "fetch_budget: ...".
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(status.message(), absl::MaxSplits(':', 1));
    const std::string name = absl::StrReplaceAll(parts.first, {{"_", "-"}});
    return Refuse(absl::StrCat("--shared-", name, ":", parts.second));
  }
  return RedisOf(flags).status();
}

absl::StatusOr<StoreAndEngine> AddSharedTier(const SharedFlags& flags,
                                             const std::string& secret_file,
                                             std::unique_ptr<LocalStore> store) {
  if (!flags.is_on()) return StoreAndEngine{std::move(store), nullptr, nullptr, nullptr};
  const auto unusable = std::make_shared<std::atomic<uint64_t>>(0);
  const FileReport report = [unusable](const absl::Status& why) {
    ++*unusable;
    Log(LogLevel::kWarning, "reloading a file of the shared tier failed; keeping the previous file",
        {{"reason", std::string(why.message())}});
  };
  const absl::StatusOr<std::string> secret = ReadSecret(secret_file);
  if (!secret.ok()) return secret.status();
  absl::StatusOr<RedisOptions> redis = RedisOf(flags);
  if (!redis.ok()) return redis.status();
  redis->on_unusable_file = report;
  absl::StatusOr<std::unique_ptr<SharedEngine>> engine = OpenRedisCluster(*redis);
  if (!engine.ok()) return ByFlag(flags, engine.status());
  StoreAndEngine shared;
  shared.engine = engine->get();
  shared.unusable_files = unusable;
  shared.store =
      std::make_unique<SharedStore>(std::move(store), *std::move(engine), *secret, flags.options);
  const auto reachability = std::make_shared<Reachability>("shared tier", flags.url);
  shared.watch = std::make_unique<RepeatingThread>(
      [engine = shared.engine, reachability, is_first = true]() mutable {
        // Skip the first check: connecting to a reachable Redis takes less time than one period.
        if (!std::exchange(is_first, false)) NoteReached(engine->Stats(), reachability.get());
        return kWatchEvery;
      });
  return shared;
}

void NoteReached(const SharedEngineStats& stats, Reachability* reachability) {
  reachability->Note(stats.shards > 0 && stats.reachable >= stats.shards,
                     absl::StrCat(stats.reachable, " of ", stats.shards, " primaries reached"));
}

std::vector<MetricSample> SharedEngineSamples(const StoreAndEngine& shared) {
  const SharedEngineStats stats =
      shared.engine == nullptr ? SharedEngineStats() : shared.engine->Stats();
  const uint64_t unusable_files =
      shared.unusable_files == nullptr ? 0 : shared.unusable_files->load();
  return {
      MetricSample::Gauge("hearth_store_shared_shards", "Primaries of the shared tier.",
                          stats.shards),
      MetricSample::Gauge("hearth_store_shared_reachable_shards",
                          "Primaries of the shared tier with an open connection.", stats.reachable),
      MetricSample::Count("hearth_store_shared_round_trips_total",
                          "Round trips to the shared tier.", stats.round_trips),
      MetricSample::Count("hearth_store_shared_redirections_total",
                          "Keys that a node redirected to another node.", stats.redirections),
      MetricSample::Count("hearth_store_shared_reconnects_total",
                          "Reconnects to nodes of the shared tier.", stats.reconnects),
      MetricSample::Count("hearth_store_shared_failed_total",
                          "Keys whose requests to the shared tier failed.", stats.failed),
      MetricSample::Count("hearth_store_shared_unusable_files_total",
                          "Failed reloads of the shared tier's password and certificates.",
                          unusable_files),
  };
}

}  // namespace hearth
