// Stores that share real Redis servers: killed, silent and too small ones cost misses, no failure
// and no wrong byte.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "cache_store/base/secret.h"
#include "cache_store/shared/tier/shared_store.h"
#include "tests/cache_store/shared/redis_kit.h"
#include "tests/cache_store/shared/redis_servers.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

// Of C = 16: 64 tokens are 4 global objects of 16 KiB and 2 local ones of 32.
class SharedRedisTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisProcess::IsInstalled()) GTEST_SKIP() << "redis-tools is not installed";
    shared_.fetch_budget =
        absl::Seconds(30);  // a busy machine may take longer than a lookup should
  }
  std::unique_ptr<SharedStore> Store(const std::string& addresses) {
    StoreOptions options;
    options.host_bytes = 64 * kMiB;
    options.secret_file = folder_.path() + "/secret";
    const std::string secret = ReadOrMakeSecret(options.secret_file).value();
    RedisOptions redis = ParseRedisUrl("redis://" + addresses).value();
    redis.user = redis_.user;
    redis.password_file = redis_.password_file;
    return std::make_unique<SharedStore>(TieredStore::Open(options).value(),
                                         RedisCluster::Open(redis).value(), secret, shared_);
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }
  void Publish(TieredStore* store, uint64_t first, uint64_t count) {
    for (uint64_t seed = first; seed < first + count; ++seed) {
      ASSERT_TRUE(KitPublish(store, model_, Prompt(seed), {64}).ok());
    }
    ASSERT_TRUE(store->Flush(Soon()).ok());
  }
  // Compares every byte with what was published.
  uint32_t Fetch(TieredStore* store, uint64_t seed) {
    const auto tokens = KitFetch(store, model_, Prompt(seed));
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens.value_or(0);
  }
  size_t Hits(TieredStore* store, uint64_t first, uint64_t count) {
    size_t hits = 0;
    for (uint64_t seed = first; seed < first + count; ++seed) hits += Fetch(store, seed) == 64;
    return hits;
  }

  const TestFolder folder_;
  SharedOptions shared_;
  RedisOptions redis_;  // whose user and password are used
  const Fingerprint model_ = [] {
    KitModel model;
    model.head_dim = 128;
    return model.Make();
  }();
};

TEST_F(SharedRedisTest, AClusterServesEachStoreOnItsFirstRequestAndLosesNoMoreThanItsShard) {
  RedisServers servers({});
  const auto one = Store(servers.addresses()), other = Store(servers.addresses());
  Publish(one.get(), 1, 20);
  EXPECT_EQ(Hits(other.get(), 1, 20), 20);
  EXPECT_EQ(other->Stats().Of(Counter::kSharedHits), 20);
  servers.at(0).Kill();
  const auto third = Store(servers.addresses());
  EXPECT_LT(Hits(third.get(), 1, 20), 20);  // each has 8 values on 3 shards
  Publish(third.get(), 21, 5);
  EXPECT_EQ(Hits(third.get(), 21, 5), 5);
  EXPECT_EQ(Hits(other.get(), 1, 20), 20);  // from RAM
}

// What docs/operations.md tells the operator to allow.
TEST_F(SharedRedisTest, AUserWithFewRightsIsEnough) {
  RedisServers servers({});
  for (int i = 0; i < servers.size(); ++i) {
    const std::string made =
        servers.at(i).Ask({"ACL", "SETUSER", "hearth", "reset", "on", ">word", "~h1:*", "+ping",
                           "+exists", "+getrange", "+set", "+pexpire", "+unlink", "+cluster|slots",
                           "+asking", "+client|setname"});
    ASSERT_EQ(made, "OK");
  }
  const std::string password_file = folder_.path() + "/password";
  std::ofstream(password_file) << "word";
  ASSERT_EQ(chmod(password_file.c_str(), 0600), 0);
  redis_.user = "hearth";
  redis_.password_file = password_file;
  const auto one = Store(servers.addresses()), other = Store(servers.addresses());
  Publish(one.get(), 1, 10);
  EXPECT_EQ(Hits(other.get(), 1, 10), 10);
  ASSERT_TRUE(other->Flush(Soon()).ok());  // ends are put off
  EXPECT_TRUE(one->DropAll("default", false).ok());
  EXPECT_EQ(Hits(Store(servers.addresses()).get(), 1, 10), 0);
  for (int i = 0; i < servers.size(); ++i) {
    EXPECT_EQ(servers.at(i).Ask({"ACL", "LOG"}), "");  // of what was refused
  }
}

TEST_F(SharedRedisTest, AServerThatIsSilentCostsMissesAndThenServesAgain) {
  const TestFolder data;
  RedisProcess server(data.path(), {});
  shared_.fetch_budget = absl::Milliseconds(100);
  const auto one = Store(server.address());
  Publish(one.get(), 1, 3);
  const auto other = Store(server.address());
  // A busy machine may take longer than the budget.
  for (const absl::Time until = Soon(); Fetch(other.get(), 1) == 0;) ASSERT_LT(absl::Now(), until);
  server.Stop();
  EXPECT_EQ(Fetch(other.get(), 2), 0);
  EXPECT_EQ(Fetch(other.get(), 1), 64);
  EXPECT_GT(other->Stats().Of(Counter::kSharedUnanswered), 0);
  ASSERT_TRUE(KitPublish(other.get(), model_, Prompt(4), {64}).ok());
  server.Continue();
  const absl::Time until = Soon();
  uint32_t found = 0;
  while (found == 0 && absl::Now() < until) found = Fetch(other.get(), 3);
  EXPECT_EQ(found, 64);
}

TEST_F(SharedRedisTest, AServerThatIsTooSmallForgetsAndNoWrongByteComesOfIt) {
  const TestFolder data;
  RedisProcess server(data.path(), {false,
                                    false,
                                    {"--maxmemory", "6mb", "--maxmemory-policy", "volatile-ttl",
                                     "--maxmemory-samples", "64"}});
  const auto one = Store(server.address());
  Publish(one.get(), 1, 150);  // 128 KiB each
  const auto other = Store(server.address());
  const size_t hits = Hits(other.get(), 1, 150);
  EXPECT_GT(hits, 10);
  EXPECT_LT(hits, 60);
  EXPECT_EQ(other->Stats().Of(Counter::kSharedRejectedValues), 0);
  // Read and written at once, while values go.
  std::mt19937_64 random(3);
  for (int i = 0; i < 150; ++i) {
    if (i % 3 == 0) Publish(one.get(), 1000 + i, 1);
    Fetch(other.get(), 1 + random() % 1150);
  }
}

}  // namespace
}  // namespace hearth
