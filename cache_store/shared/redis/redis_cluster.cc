#include "cache_store/shared/redis/redis_cluster.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/shared/redis/cluster_router.h"
#include "cache_store/shared/redis/key_batch.h"

namespace hearth {
namespace {

using Verb = KeyCommand::Verb;
using Kind = RedisReply::Kind;

constexpr absl::Duration kWaitMax = absl::Hours(1);  // replaces an infinite deadline
// Redis's limit of a value's length; longer values would overflow the protocol's numbers.
constexpr uint64_t kValueBytesMax = uint64_t{512} << 20;

absl::Status WrongKind() { return absl::DataLossError("redis: the reply has the wrong type"); }

// These functions move the reply out of its batch, because the loop's thread may destroy the batch
// later.
absl::StatusOr<int64_t> TakeNumber(absl::StatusOr<RedisReply>* taken) {
  absl::StatusOr<RedisReply>& reply = *taken;
  if (!reply.ok()) return std::move(reply).status();
  if (reply->kind != Kind::kInteger) return WrongKind();
  return reply->integer;
}

// Returns the time to live in milliseconds, as Redis expects it: Redis refuses 0 and overflows.
int64_t TtlMs(absl::Duration ttl) {
  if (ttl >= absl::Hours(24) * 36500) return 0;  // longer than a century: no expiry
  return std::max<int64_t>(absl::ToInt64Milliseconds(ttl), 1);
}

std::vector<KeyCommand> CommandsOf(Verb verb, absl::Span<const std::string> keys) {
  std::vector<KeyCommand> commands(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    commands[i].verb = verb;
    commands[i].key = keys[i];
  }

  return commands;
}

absl::StatusOr<bool> TakeWritten(absl::StatusOr<RedisReply>* taken, bool only_if_absent) {
  absl::StatusOr<RedisReply>& reply = *taken;
  if (!reply.ok()) return std::move(reply).status();
  if (reply->kind == Kind::kStatus) return true;
  if (reply->kind == Kind::kNil && only_if_absent) return false;
  return WrongKind();
}

absl::StatusOr<std::string> TakeValue(absl::StatusOr<RedisReply>* taken, uint64_t max_bytes) {
  absl::StatusOr<RedisReply>& reply = *taken;
  if (!reply.ok()) return std::move(reply).status();
  if (reply->kind != Kind::kText) return WrongKind();
  if (reply->text.empty()) return absl::NotFoundError("redis: no such key");
  if (reply->text.size() > max_bytes) {
    return absl::DataLossError(absl::StrCat("redis: a value is longer than ", max_bytes, " bytes"));
  }

  return std::move(reply->text);
}

// Calls `take` for each of the first `count` replies, and returns the results.
template <typename Take>
auto TakeAll(KeyBatch* batch, size_t count, Take take) {
  std::vector<decltype(take(&batch->answer(0), size_t{0}))> results;
  assert(count <= batch->size());
  results.reserve(count);
  for (uint32_t i = 0; i < count; ++i) results.push_back(take(&batch->answer(i), size_t{i}));
  return results;
}

class RedisCluster final : public SharedEngine {
 public:
  explicit RedisCluster(const RedisOptions& options) : parts_(options), router_(&parts_) {}
  ~RedisCluster() override { parts_.loop.Stop(); }

  absl::Status Start() {
    const RedisOptions& options = parts_.options;
    absl::Status status = parts_.password.Get().status();
    if (status.ok() && options.use_tls) {
      status = parts_.tls.Make(options.addresses[0].host).status();
    }
    if (!status.ok()) return status;
    parts_.loop.Post([this] { router_.Begin(); });
    parts_.loop.Start();
    return status;
  }

  std::vector<absl::StatusOr<bool>> Exists(absl::Span<const std::string> keys,
                                           absl::Time deadline) override {
    const auto batch = Run(CommandsOf(Verb::kExists, keys), deadline);
    return TakeAll(batch.get(), keys.size(), [](auto* reply, size_t) -> absl::StatusOr<bool> {
      const absl::StatusOr<int64_t> number = TakeNumber(reply);
      if (!number.ok()) return number.status();
      return *number > 0;
    });
  }

  Later GetLater(std::vector<std::string> keys, uint64_t max_bytes, absl::Time deadline) override {
    assert(max_bytes > 0 && max_bytes <= kValueBytesMax);
    const auto texts = std::make_shared<const std::vector<std::string>>(std::move(keys));
    std::vector<KeyCommand> commands = CommandsOf(Verb::kGet, *texts);
    for (KeyCommand& command : commands) command.max_bytes = max_bytes;
    auto batch = std::make_shared<KeyBatch>(std::move(commands), texts);
    Submit(batch, deadline);
    return [batch, max_bytes] {
      batch->Wait();
      return TakeAll(batch.get(), batch->size(),
                     [=](auto* reply, size_t) { return TakeValue(reply, max_bytes); });
    };
  }

  std::vector<absl::StatusOr<bool>> Set(absl::Span<const SharedValue> values,
                                        absl::Time deadline) override {
    std::vector<KeyCommand> commands;
    for (const SharedValue& value : values) {
      assert(!value.value.empty() && value.value.size() <= kValueBytesMax);
      commands.push_back(
          {Verb::kSet, value.key, value.value, TtlMs(value.ttl), value.only_if_absent});
    }
    const auto batch = Run(std::move(commands), deadline);
    return TakeAll(batch.get(), values.size(), [&](auto* reply, size_t i) {
      return TakeWritten(reply, values[i].only_if_absent);
    });
  }

  std::vector<absl::Status> ExtendExpiry(absl::Span<const SharedExpiry> expiries,
                                         absl::Time deadline) override {
    std::vector<KeyCommand> commands;
    for (const SharedExpiry& expiry : expiries) {
      commands.push_back({Verb::kExtend, expiry.key, "", TtlMs(expiry.ttl)});
      assert(commands.back().ttl_ms > 0);
    }
    const auto batch = Run(std::move(commands), deadline);
    return TakeAll(batch.get(), expiries.size(),
                   [](auto* reply, size_t) { return TakeNumber(reply).status(); });
  }

  std::vector<absl::Status> Erase(absl::Span<const std::string> keys,
                                  absl::Time deadline) override {
    // Erase on two connections: a write of the key whose caller gave up may still be in flight on
    // either of them.
    const uint32_t count = static_cast<uint32_t>(keys.size());
    std::vector<KeyCommand> commands = CommandsOf(Verb::kErase, keys);
    for (uint32_t i = 0; i < count; ++i) {
      commands.push_back(commands[i]);
      commands.back().after_writes = true;
    }
    const auto batch = Run(std::move(commands), deadline);
    std::vector<absl::Status> results;
    for (uint32_t i = 0; i < count; ++i) {
      results.push_back(TakeNumber(&batch->answer(i)).status());
      results.back().Update(TakeNumber(&batch->answer(count + i)).status());
    }
    return results;
  }

  void Recycle(std::string value) override { parts_.texts.Give(std::move(value)); }
  SharedEngineStats Stats() const override {
    const RedisCounters& now = parts_.counters;
    return {now.shards,       now.reachable,  now.nodes,  now.round_trips,
            now.redirections, now.reconnects, now.failed, now.sent_bytes};
  }

 private:
  // Sends the batch and returns immediately.
  void Submit(const std::shared_ptr<KeyBatch>& batch, absl::Time deadline) {
    const absl::Duration wait = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), kWaitMax);
    if (batch->size() == 0) return;
    parts_.loop.Post([this, batch, wait] { router_.Submit(batch, wait); });
  }

  // Sends the commands and waits until all of them are finished.
  std::shared_ptr<KeyBatch> Run(std::vector<KeyCommand> commands, absl::Time deadline) {
    auto batch = std::make_shared<KeyBatch>(std::move(commands));
    Submit(batch, deadline);
    batch->Wait();
    return batch;
  }

  RedisParts parts_;
  ClusterRouter router_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SharedEngine>> OpenRedisCluster(const RedisOptions& options) {
  assert(!options.addresses.empty());
  auto engine = std::make_unique<RedisCluster>(options);
  if (absl::Status started = engine->Start(); !started.ok()) return started;
  return engine;
}

}  // namespace hearth
