// The shared engine's methods with real Redis servers: a cluster and a single server.
#include "cache_store/shared/redis/redis_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/shared/redis/slot_map.h"
#include "tests/cache_store/shared/redis_kit.h"
#include "tests/cache_store/shared/redis_servers.h"

namespace hearth {
namespace {

class RedisClusterTest : public testing::TestWithParam<bool> {
 protected:
  // All tests share one cluster, because a cluster takes two seconds to form. No test damages it.
  static void SetUpTestSuite() {
    if (!RedisProcess::IsInstalled()) return;
    folder_ = new TestFolder;
    cluster_ = new RedisServers(RedisServers::Options{});
    single_ = new RedisProcess(folder_->path(), RedisProcess::Options{});
  }
  static void TearDownTestSuite() {
    delete std::exchange(cluster_, nullptr);
    delete std::exchange(single_, nullptr);
    delete std::exchange(folder_, nullptr);
  }
  static bool IsCluster() { return GetParam(); }
  void SetUp() override {
    if (cluster_ == nullptr) GTEST_SKIP() << "redis-tools is not installed";
    for (int i = 0; i < cluster_->size(); ++i) cluster_->at(i).Ask({"FLUSHALL"});
    single_->Ask({"FLUSHALL"});
    const std::string addresses = IsCluster() ? cluster_->addresses() : single_->address();
    engine_ = OpenRedis(addresses);
  }
  RedisProcess& OwnerOf(const std::string& key) {
    return IsCluster() ? cluster_->at(cluster_->ShareOf(KeySlot(key))) : *single_;
  }

  static inline TestFolder* folder_ = nullptr;
  static inline RedisServers* cluster_ = nullptr;
  static inline RedisProcess* single_ = nullptr;
  std::unique_ptr<SharedEngine> engine_;
};

INSTANTIATE_TEST_SUITE_P(OnBoth, RedisClusterTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Cluster" : "Single"; });

TEST_P(RedisClusterTest, GetReturnsWrittenValues) {
  std::vector<std::string> keys, contents;
  std::vector<SharedValue> values;
  for (int i = 0; i < 500; ++i) {
    keys.push_back(absl::StrCat("h1:{", i, "}:g:0"));
    contents.push_back(std::string(1 + i * 37, static_cast<char>(i)) + "\r\n" +
                       std::string(1, '\0'));
  }
  contents[0] = std::string(1048512, 'x');
  for (int i = 0; i < 500; i += 2) values.push_back({keys[i], contents[i]});
  for (const auto& written : engine_->Set(values, Soon())) EXPECT_TRUE(written.value());
  const auto exists = engine_->Exists(keys, Soon());
  const auto got = engine_->Get(keys, 1048512, Soon());
  ASSERT_EQ(exists.size(), keys.size());
  ASSERT_EQ(got.size(), keys.size());
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(exists[i].value(), i % 2 == 0) << i;
    if (i % 2 == 0) {
      EXPECT_TRUE(got[i].value() == contents[i]) << i;
    } else {
      EXPECT_TRUE(absl::IsNotFound(got[i].status())) << i;
    }
  }
  EXPECT_TRUE(engine_->Exists({}, Soon()).empty());
  const SharedEngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.shards, IsCluster() ? 3u : 1u);
  EXPECT_EQ(stats.reachable, stats.shards);
  EXPECT_EQ(stats.round_trips, 3 * stats.shards);
  EXPECT_EQ(stats.failed, 0u);
  EXPECT_GT(stats.sent_bytes, 1048512u);
}

TEST_P(RedisClusterTest, PipelinedGetsReturnTheirKeysValues) {
  std::vector<std::string> keys, contents;
  std::vector<SharedValue> values;
  for (int i = 0; i < 40; ++i) {
    keys.push_back(absl::StrCat("h1:{", i, "}:g:0"));
    contents.push_back(std::string(100000 + i, static_cast<char>(i)));
  }
  for (int i = 0; i < 40; ++i) values.push_back({keys[i], contents[i]});
  for (const auto& written : engine_->Set(values, Soon())) EXPECT_TRUE(written.value());
  std::vector<SharedEngine::Later> asked;
  for (int i = 0; i < 40; i += 2) {
    asked.push_back(engine_->GetLater({keys[i], keys[i + 1]}, 1 << 20, Soon()));
  }
  asked[7] = nullptr;  // no thread waits for this read
  for (int i = 38; i >= 0; i -= 2) {
    if (asked[i / 2] == nullptr) continue;
    const SharedEngine::Values got = asked[i / 2]();
    ASSERT_EQ(got.size(), 2u);
    EXPECT_TRUE(got[0].value() == contents[i] && got[1].value() == contents[i + 1]) << i;
  }
}

TEST_P(RedisClusterTest, SetIfAbsentKeepsFirstValue) {
  const std::vector<std::string> key = {"once"};
  EXPECT_TRUE(engine_->Set({{key[0], "first", absl::InfiniteDuration(), true}}, Soon())[0].value());
  EXPECT_FALSE(
      engine_->Set({{key[0], "other", absl::InfiniteDuration(), true}}, Soon())[0].value());
  EXPECT_EQ(engine_->Get(key, 100, Soon())[0].value(), "first");
  EXPECT_TRUE(engine_->Set({{key[0], "other"}}, Soon())[0].value());
  EXPECT_EQ(engine_->Get(key, 100, Soon())[0].value(), "other");
}

TEST_P(RedisClusterTest, ExtendExpiryNeverShortensTtl) {
  const auto life_s = [this](const std::string& key) {
    return std::stoi(OwnerOf(key).Ask({"TTL", key}));
  };
  engine_->Set({{"hours", "v", absl::Hours(2)}, {"ever", "v"}}, Soon());
  EXPECT_NEAR(life_s("hours"), 7200, 60);
  EXPECT_EQ(life_s("ever"), -1);
  const auto extended = engine_->ExtendExpiry(
      {{"hours", absl::Hours(9)}, {"ever", absl::Hours(9)}, {"gone", absl::Hours(9)}}, Soon());
  for (const absl::Status& status : extended) EXPECT_TRUE(status.ok()) << status;
  EXPECT_NEAR(life_s("hours"), 9 * 3600, 60);
  EXPECT_EQ(life_s("ever"), -1) << "for ever is later than nine hours";
  EXPECT_EQ(life_s("gone"), -2);
  engine_->ExtendExpiry({{"hours", absl::Hours(1)}}, Soon());
  EXPECT_NEAR(life_s("hours"), 9 * 3600, 60);
}

TEST_P(RedisClusterTest, EraseRemovesKey) {
  engine_->Set({{"a", "1"}, {"b", "2"}}, Soon());
  for (const absl::Status& status : engine_->Erase({"a", "c"}, Soon())) EXPECT_TRUE(status.ok());
  const auto exists = engine_->Exists({"a", "b"}, Soon());
  EXPECT_FALSE(exists[0].value());
  EXPECT_TRUE(exists[1].value());
}

TEST_P(RedisClusterTest, InvalidValueIsDataLoss) {
  engine_->Set({{"long", std::string(1001, 'x')}, {"right", std::string(1000, 'x')}}, Soon());
  ASSERT_EQ(OwnerOf("list").Ask({"LPUSH", "list", "element"}), "1");
  const auto got = engine_->Get({"long", "right", "list"}, 1000, Soon());
  EXPECT_TRUE(absl::IsDataLoss(got[0].status()));
  EXPECT_EQ(got[1].value(), std::string(1000, 'x'));
  EXPECT_TRUE(absl::IsDataLoss(got[2].status()));
}

TEST_P(RedisClusterTest, FullServerReturnsResourceExhausted) {
  RedisProcess& owner = OwnerOf("key");
  ASSERT_EQ(owner.Ask({"CONFIG", "SET", "maxmemory", "1"}), "OK");
  const absl::Status full = engine_->Set({{"key", "v"}}, Soon())[0].status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_FALSE(engine_->Exists({"key"}, Soon())[0].value());
  ASSERT_EQ(owner.Ask({"CONFIG", "SET", "maxmemory", "0"}), "OK");
  EXPECT_TRUE(engine_->Set({{"key", "v"}}, Soon())[0].ok());
}

TEST_P(RedisClusterTest, ServesConcurrentThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0}, firsts{0};
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 20; ++round) {
        std::vector<std::string> keys;
        std::vector<SharedValue> values;
        for (int i = 0; i < 20; ++i) keys.push_back(absl::StrCat(thread, "-", round, "-", i));
        for (const std::string& key : keys) values.push_back({key, key});
        for (const auto& written : engine_->Set(values, Soon())) wrong += written.ok() ? 0 : 1;
        const auto got = engine_->Get(keys, kMaxBytes, Soon());
        for (int i = 0; i < 20; ++i) wrong += got[i].value_or("") == keys[i] ? 0 : 1;
        // In each round, exactly one thread writes the key first.
        const std::string first = absl::StrCat("round ", round);
        const auto taken = engine_->Set({{first, "taken", absl::Hours(1), true}}, Soon());
        wrong += taken[0].ok() ? 0 : 1;
        firsts += taken[0].value_or(false) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(firsts, 20);
}

TEST_P(RedisClusterTest, LargeBatchIsSentInPieces) {
  std::vector<std::string> keys;
  std::vector<SharedValue> values;
  const std::string content(1000000, 'z');
  for (int i = 0; i < 80; ++i) keys.push_back(absl::StrCat("{same}", i));
  for (const std::string& key : keys) values.push_back({key, content});
  for (const auto& written : engine_->Set(values, Soon())) EXPECT_TRUE(written.value());
  const auto got = engine_->Get(keys, content.size(), Soon());
  for (const auto& value : got) EXPECT_TRUE(value.value() == content);
}

}  // namespace
}  // namespace hearth
