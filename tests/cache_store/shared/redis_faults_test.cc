// The shared engine while Redis servers are killed, suspended or restarted, and while slots
// migrate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/shared/redis/slot_map.h"
#include "tests/cache_store/shared/redis_kit.h"
#include "tests/cache_store/shared/redis_servers.h"

namespace hearth {
namespace {

constexpr int kKeys = 100;

std::string Key(int i) { return absl::StrCat("h1:{", i, "}:g:0"); }

std::vector<std::string> Keys() {
  std::vector<std::string> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(Key(i));
  return keys;
}

// Writes all keys; each key's value is its name. Returns the number of failures.
int SetAll(SharedEngine* engine) {
  const std::vector<std::string> keys = Keys();
  std::vector<SharedValue> values;
  for (const std::string& key : keys) values.push_back({key, key});
  int failed = 0;
  for (const auto& written : engine->Set(values, Soon())) failed += written.ok() ? 0 : 1;
  return failed;
}

// Writes all keys until no write fails: writes can fail until each connection of the client is open
// again.
void SetAllAtLast(SharedEngine* engine, const RedisProcess& running) {
  while (SetAll(engine) > 0) running.Pause();
}

// Returns how many keys cannot be read.
int CountUnread(SharedEngine* engine) {
  int unread = 0;
  for (const auto& got : engine->Get(Keys(), kMaxBytes, Soon())) unread += got.ok() ? 0 : 1;
  return unread;
}

class RedisFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisProcess::IsInstalled()) GTEST_SKIP() << "redis-tools is not installed";
  }
  static void LoseAPrimary(void (RedisProcess::*lose)(), void (RedisProcess::*find)());
  // Returns how many keys of the server's initial slots cannot be read. Expects that these fail
  // because the shard cannot be reached, and that all other keys are read.
  static int CountLost(SharedEngine* engine, const RedisServers& servers, int server) {
    const std::vector<std::string> keys = Keys();
    const auto got = engine->Get(keys, kMaxBytes, Soon());
    int lost = 0;
    for (int i = 0; i < kKeys; ++i) {
      if (!got[i].ok() && servers.ShareOf(KeySlot(keys[i])) == server) {
        EXPECT_TRUE(absl::IsUnavailable(got[i].status())) << got[i].status();
        ++lost;
      } else {
        EXPECT_EQ(got[i].value_or(std::string(got[i].status().message())), keys[i]);
      }
    }
    return lost;
  }
};

// Runs 3 primaries and 3 replicas, and makes the first primary fail (`lose`) after its keys have
// reached its replica. `find` brings it back.
void RedisFaults::LoseAPrimary(void (RedisProcess::*lose)(), void (RedisProcess::*find)()) {
  RedisServers servers({3, 1});
  const auto engine = OpenRedis(servers.addresses(), kShortSilence);
  SetAllAtLast(engine.get(), servers.at(0));
  for (int i = 0; i < 3; ++i) {
    while (!absl::StrContains(servers.at(3 + i).Ask({"INFO", "keyspace"}),
                              absl::StrCat("keys=", servers.at(i).Ask({"DBSIZE"}), ","))) {
      servers.at(i).Pause();
    }
  }
  (servers.at(0).*lose)();
  EXPECT_GT(CountLost(engine.get(), servers, 0), 0);
  servers.DetectFailuresFast();
  while (CountUnread(engine.get()) > 0) servers.at(1).Pause();
  SetAllAtLast(engine.get(), servers.at(1));
  while (engine->Stats().reachable < 3) servers.at(1).Pause();
  EXPECT_EQ(engine->Stats().shards, 3u);
  (servers.at(0).*find)();
  while (!absl::StrContains(servers.at(0).Ask({"INFO", "replication"}), "role:slave")) {
    servers.at(0).Pause();
  }
  while (CountUnread(engine.get()) > 0) servers.at(1).Pause();
  SetAllAtLast(engine.get(), servers.at(1));
}

TEST_F(RedisFaults, ReplicaReplacesKilledPrimary) {
  LoseAPrimary(&RedisProcess::Kill, &RedisProcess::Start);
}

TEST_F(RedisFaults, ReplicaReplacesStoppedPrimary) {
  LoseAPrimary(&RedisProcess::Stop, &RedisProcess::Continue);
}

TEST_F(RedisFaults, StoppedShardFailsItsKeys) {
  RedisServers servers({3, 0});
  const auto engine = OpenRedis(servers.addresses(), kShortSilence);
  SetAllAtLast(engine.get(), servers.at(0));
  servers.at(1).Stop();
  const int lost = CountLost(engine.get(), servers, 1);
  EXPECT_GT(lost, 0);
  // The client knows that the shard is silent: calls do not wait for their deadline, and the shard
  // does not count as reachable.
  EXPECT_EQ(CountLost(engine.get(), servers, 1), lost);
  EXPECT_EQ(engine->Stats().reachable, 2u);
  servers.at(1).Continue();
  while (CountUnread(engine.get()) > 0) servers.at(0).Pause();
  SetAllAtLast(engine.get(), servers.at(0));
}

TEST_F(RedisFaults, CallsSucceedDuringSlotMigration) {
  RedisServers servers({3, 0});
  const auto engine = OpenRedis(servers.addresses());
  ASSERT_EQ(SetAll(engine.get()), 0);
  std::atomic<bool> moves{true};
  int failed = 0, rounds = 0;
  std::thread user([&] {
    const std::vector<std::string> keys = Keys();
    for (; moves; ++rounds) {
      failed += SetAll(engine.get());
      const auto got = engine->Get(keys, kMaxBytes, Soon());
      for (int i = 0; i < kKeys; ++i) failed += got[i].value_or("") == keys[i] ? 0 : 1;
    }
  });
  const int added = servers.AddPrimary();
  for (int i = 0; i < kKeys; ++i) {
    const int slot = KeySlot(Key(i));
    servers.MoveSlot(slot, servers.ShareOf(slot), added);
  }
  moves = false;
  user.join();
  EXPECT_EQ(failed, 0);
  EXPECT_GT(rounds, 0);
  EXPECT_EQ(SetAll(engine.get()), 0);
  EXPECT_GT(engine->Stats().redirections, 0u);
  while (engine->Stats().shards < 4) servers.at(0).Pause();
}

TEST_F(RedisFaults, RestartedServerIsFoundAgain) {
  const TestFolder folder;
  RedisProcess redis(folder.path(), {});
  const auto engine = OpenRedis(redis.address());
  ASSERT_EQ(SetAll(engine.get()), 0);
  redis.Kill();
  const absl::Status lost = engine->Exists({"key"}, Soon())[0].status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), testing::HasSubstr(redis.address()));
  while (engine->Stats().reachable > 0) redis.Pause();
  redis.Start();
  while (SetAll(engine.get()) > 0) redis.Pause();
  EXPECT_GT(engine->Stats().reconnects, 0u);
}

TEST_F(RedisFaults, EngineOpensBeforeServer) {
  const TestFolder folder;
  RedisProcess redis(folder.path(), {});
  redis.Kill();
  const auto engine = OpenRedis(redis.address());
  EXPECT_TRUE(absl::IsUnavailable(engine->Exists({"key"}, Soon())[0].status()));
  redis.Start();
  while (SetAll(engine.get()) > 0) redis.Pause();
}

TEST_F(RedisFaults, ClosedConnectionIsReopened) {
  const TestFolder folder;
  RedisProcess redis(folder.path(), {});
  const auto engine = OpenRedis(redis.address());
  ASSERT_EQ(SetAll(engine.get()), 0);
  EXPECT_THAT(redis.Ask({"CLIENT", "LIST"}), testing::HasSubstr("name=hearth-store"));
  redis.Ask({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
  while (SetAll(engine.get()) > 0) redis.Pause();
}

TEST_F(RedisFaults, PassedDeadlineIsDeadlineExceeded) {
  const TestFolder folder;
  RedisProcess redis(folder.path(), {});
  const auto engine = OpenRedis(redis.address());
  ASSERT_EQ(SetAll(engine.get()), 0);
  redis.Stop();
  const absl::Status late = engine->Exists({"key"}, absl::InfinitePast())[0].status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  redis.Continue();
  EXPECT_EQ(SetAll(engine.get()), 0) << "one that had no time to answer is not left alone";
}

TEST_F(RedisFaults, AcceptsHostnameAndIpv6) {
  const TestFolder folder;
  RedisProcess redis(folder.path(), {false, false, {"--bind", "127.0.0.1", "-::1"}});
  for (const char* host : {"localhost", "[::1]"}) {
    const auto engine = OpenRedis(absl::StrCat(host, ":", redis.port()));
    const absl::Status status = engine->Exists({"key"}, Soon())[0].status();
    if (absl::StrContains(status.message(), "Cannot assign requested address")) continue;
    EXPECT_TRUE(status.ok()) << host << ": " << status;
  }
}

}  // namespace
}  // namespace hearth
