// Stores that share real Redis servers: a server that is killed, silent or too small causes misses,
// but no errors and no wrong bytes.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/secret.h"
#include "cache_store/shared/tier/shared_store.h"
#include "tests/cache_store/shared/fake_redis.h"
#include "tests/cache_store/shared/redis_kit.h"
#include "tests/cache_store/shared/redis_servers.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

// With chunks of 16 tokens, 64 tokens are 4 global objects of 16 KiB and 2 local objects of 32 KiB.
class SharedRedisTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisProcess::IsInstalled()) GTEST_SKIP() << "redis-tools is not installed";
    shared_.fetch_budget = absl::Minutes(1);  // a busy machine may need longer than the default
  }
  std::unique_ptr<SharedStore> Store(const std::string& addresses) {
    StoreOptions options;
    options.host_bytes = host_bytes_;
    options.secret_file = folder_.path() + "/secret";
    const std::string secret = ReadOrMakeSecret(options.secret_file).value();
    RedisOptions redis = redis_;
    redis.addresses = ParseRedisUrl("redis://" + addresses)->addresses;
    return std::make_unique<SharedStore>(TieredStore::Open(options).value(),
                                         OpenRedisCluster(redis).value(), secret, shared_);
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }
  void Publish(TieredStore* store, uint64_t first, uint64_t count) {
    for (uint64_t seed = first; seed < first + count; ++seed) {
      ASSERT_TRUE(KitPublish(store, model_, Prompt(seed), {64}).ok());
    }
    ASSERT_TRUE(store->Flush(Soon()).ok());
  }
  // Returns the number of usable tokens. Compares every byte with the published bytes.
  uint32_t Fetch(TieredStore* store, uint64_t seed) {
    store->Observe(model_, "default");
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
  uint64_t host_bytes_ = 64 * kMiB;
  SharedOptions shared_;
  RedisOptions redis_ = Patient({});  // options of all clients, without the addresses
  Fingerprint model_ = [] {
    KitModel model;
    model.head_dim = 128;
    return model.Make();
  }();
};

TEST_F(SharedRedisTest, ClusterServesDespiteLostShard) {
  RedisServers servers({});
  const auto one = Store(servers.addresses()), other = Store(servers.addresses());
  Publish(one.get(), 1, 20);
  EXPECT_EQ(Hits(other.get(), 1, 20), 20);
  EXPECT_EQ(other->Stats().Of(Counter::kSharedHits), 20);
  servers.at(0).Kill();
  const auto third = Store(servers.addresses());
  EXPECT_LT(Hits(third.get(), 1, 20), 20);  // each prompt has 8 values on 3 shards
  Publish(third.get(), 21, 5);
  EXPECT_EQ(Hits(third.get(), 21, 5), 5);
  EXPECT_EQ(Hits(other.get(), 1, 20), 20);  // hits from RAM
}

// The Redis user has the rights listed in docs/scale-out.md.
TEST_F(SharedRedisTest, RestrictedUserSuffices) {
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
  ASSERT_TRUE(other->Flush(Soon()).ok());  // waits until the expiries are extended
  EXPECT_TRUE(one->DropAll("default", false).ok());
  EXPECT_EQ(Hits(Store(servers.addresses()).get(), 1, 10), 0);
  for (int i = 0; i < servers.size(); ++i) {
    // expects that the server's log of refused commands is empty
    EXPECT_EQ(servers.at(i).Ask({"ACL", "LOG"}), "");
  }
}

TEST_F(SharedRedisTest, SilentServerCostsOnlyMisses) {
  const TestFolder data;
  RedisProcess server(data.path(), {});
  const auto one = Store(server.address());
  Publish(one.get(), 1, 3);
  shared_.fetch_budget = absl::Seconds(1);
  redis_.silence = kShortSilence;
  const auto other = Store(server.address());
  // Repeat the fetch: on a busy machine it may take longer than the budget.
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

TEST_F(SharedRedisTest, EvictingServerCostsOnlyMisses) {
  const TestFolder data;
  RedisProcess server(data.path(), {false,
                                    false,
                                    {"--maxmemory", "6mb", "--maxmemory-policy", "volatile-ttl",
                                     "--maxmemory-samples", "64"}});
  const auto one = Store(server.address());
  Publish(one.get(), 1, 150);  // each prompt has 128 KiB
  const auto other = Store(server.address());
  const size_t hits = Hits(other.get(), 1, 150);
  EXPECT_GT(hits, 10);
  EXPECT_LT(hits, 60);
  EXPECT_EQ(other->Stats().Of(Counter::kSharedRejectedValues), 0);
  // Reads and writes while values are evicted.
  std::mt19937_64 random(3);
  for (int i = 0; i < 150; ++i) {
    if (i % 3 == 0) Publish(one.get(), 1000 + i, 1);
    Fetch(other.get(), 1 + random() % 1150);
  }
}

// A fake Redis server that stores values. After Lie(), it answers one of kHonest commands wrongly.
class LyingRedis {
 public:
  static constexpr int kHonest = 1000;

  LyingRedis() : server_([this](const FakeRedis::Words& words) { return AnswerTo(words); }) {}
  std::string address() const { return server_.address().Text(); }
  int lies() {
    absl::MutexLock lock(&mutex_);
    return lies_;
  }
  void Lie() {
    absl::MutexLock lock(&mutex_);
    is_honest_ = false;
  }

 private:
  using Answer = FakeRedis::Answer;

  Answer AnswerTo(const FakeRedis::Words& words) {
    absl::MutexLock lock(&mutex_);
    const std::string honest = Honest(words);
    if (is_honest_ || random_() % kHonest != 0) return {honest};
    ++lies_;
    return Lie(words, honest);
  }
  std::string Honest(const FakeRedis::Words& words) {
    if (words[0] == "CLUSTER") return kNoCluster;
    if (words[0] == "ASKING") return "+OK\r\n";
    const bool has = values_.count(words[1]) > 0;
    if (words[0] == "SET") {
      if (has && words.back() == "NX") return "$-1\r\n";
      values_[words[1]] = words[2];
      return "+OK\r\n";
    }
    if (words[0] == "UNLINK") return absl::StrCat(":", values_.erase(words[1]), "\r\n");
    if (words[0] != "GETRANGE") return has ? ":1\r\n" : ":0\r\n";
    const std::string& value = values_[words[1]];
    const std::string text = Text(value);
    if (!has) values_.erase(words[1]);
    return text;
  }
  static std::string Text(const std::string& value) {
    return absl::StrCat("$", value.size(), "\r\n", value, "\r\n");
  }
  std::string Another() {
    if (values_.empty()) return "";
    auto it = values_.begin();
    std::advance(it, random_() % std::min<size_t>(values_.size(), 64));
    return it->second;
  }
  Answer Lie(const FakeRedis::Words& words, const std::string& honest) {
    std::string changed = honest;
    changed[random_() % changed.size()] ^= static_cast<char>(1 << random_() % 8);
    const std::function<Answer()> lies[] = {
        [&] { return Answer{changed}; },
        [&] { return Answer{Text(Another())}; },
        [&] { return Answer{Text(Another().substr(0, random_() % 100))}; },
        [&] { return Answer{Text(std::string(random_() % (4 << 20), 'x'))}; },
        [&] {
          return Answer{honest.substr(0, random_() % honest.size()), true};
        },
        [&] { return Answer{honest + honest}; },
        [&] { return Answer{honest + Text(Another())}; },
        [&] { return Answer{honest + ":1\r\n+OK\r\n-ERR\r\n"}; },
        [&] { return Answer{"$1000000000\r\n" + std::string(100'000, 'x')}; },
        [&] { return Answer{"*1000000000\r\n"}; },
        [&] { return Answer{"*3\r\n$1\r\na\r\n*1\r\n:1\r\n$-1\r\n"}; },
        [&] { return Answer{"!9\r\n"}; },
        [&] { return Answer{std::string(200, '\0')}; },
        [&] { return Answer{"$-1\r\n"}; },
        [&] { return Answer{":1\r\n"}; },
        [&] { return Answer{":0\r\n"}; },
        [&] { return Answer{"+OK\r\n"}; },
        [&] { return Answer{"-OOM command not allowed\r\n"}; },
        [&] { return Answer{"-NOPERM no permissions\r\n"}; },
        [&] { return Answer{"-LOADING Redis is loading\r\n"}; },
        [&] { return Answer{"-CLUSTERDOWN The cluster is down\r\n"}; },
        [&] { return Answer{"-READONLY replica\r\n"}; },
        [&] { return Answer{"-TRYAGAIN\r\n"}; },
        [&] { return Answer{absl::StrCat("-MOVED 1 ", address(), "\r\n")}; },
        [&] { return Answer{"-MOVED 1 127.0.0.1:1\r\n"}; },
        [&] { return Answer{"-MOVED 99999 nowhere.invalid:70000\r\n"}; },
        [&] { return Answer{absl::StrCat("-ASK 1 ", address(), "\r\n")}; },
        [&] { return Answer{"-ASK 1 127.1.1.1:1\r\n"}; },
        [&] {
          return Answer{"", true};
        },
        // no answer, so that all later answers belong to wrong commands
        [&] { return Answer{""}; },
        [&] {
          return Answer{honest, false, true};
        },
        [&] {
          return Answer{"", false, false, true};
        },
        // Stored values vanish, or are replaced by other values.
        [&] {
          values_.erase(words.back());
          return Answer{honest};
        },
        [&] {
          values_[words[1 % words.size()]] = Another();
          return Answer{honest};
        },
        [&] {
          values_.clear();
          return Answer{honest};
        },
    };
    return lies[random_() % std::size(lies)]();
  }

  absl::Mutex mutex_;
  bool is_honest_ ABSL_GUARDED_BY(mutex_) = true;
  int lies_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_){5};
  FakeRedis server_;  // the last member, because its thread uses the other members
};

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

// HEARTH_HOSTILE_FETCHES=N makes N fetches, for a measurement.
TEST_F(SharedRedisTest, LyingServerCostsOnlyMisses) {
  const char* const given = std::getenv("HEARTH_HOSTILE_FETCHES");
  const int fetches = given == nullptr ? 1200 : std::atoi(given);
  constexpr uint64_t kPrompts = 600;  // each prompt has 2 KiB; together twice the size of RAM
  LyingRedis redis;
  // The limit of silence is much shorter than the time budget of a lookup: if loads seem too slow
  // for the budget, lookups try a load only once a second.
  redis_.connect_wait = redis_.silence = absl::Seconds(1);
  redis_.probe_pause = absl::Milliseconds(5);
  host_bytes_ = kMiB / 2;
  model_ = KitModel().Make();
  const auto one = Store(redis.address());
  Publish(one.get(), 1, kPrompts);
  const auto other = Store(redis.address());
  std::mt19937_64 random(3);
  uint64_t hits = 0, most = 0, before = 0;
  redis.Lie();
  for (int i = 0; i < fetches; ++i) {
    if (i == 1000) before = ResidentBytes();
    const uint64_t seed = 1 + random() % kPrompts;
    const bool is_hit = Fetch(other.get(), seed) > 0;
    hits += is_hit;
    if (!is_hit) {
      // After a miss, publish like a worker. Then wait until a connection is open again.
      Publish(one.get(), seed, 1);
      while (other->Stats().Of(Counter::kSharedUnreachableShards) > 0) std::this_thread::yield();
    }
    if (i % 100 == 0) most = std::max(most, ResidentBytes());
  }
  EXPECT_GT(hits, fetches / 4);
  EXPECT_GT(redis.lies(), 0);
  EXPECT_LT(most, before + 64 * kMiB);
  if (given == nullptr) return;
  std::cerr << fetches << " fetches, " << hits << " hits, " << redis.lies() << " lies, "
            << other->Stats().Of(Counter::kSharedHits) << " from the engine, "
            << other->Stats().Of(Counter::kSharedRejectedValues) << " values rejected, resident "
            << before / kMiB << " MiB after 1,000, " << most / kMiB << " at most\n";
}

// During the drop, one of three stores has no connection, and loads are running. On a busy machine,
// a check for drops may take longer than a lookup waits for the check; SharedDropsTest measures the
// times with a fake clock.
TEST_F(SharedRedisTest, DropAllReachesStoresDuringLoads) {
  const TestFolder data;
  RedisProcess server(data.path(), {});
  server.Ask({"ACL", "SETUSER", "cut", "on", ">word", "~*", "+@all"});
  const std::string password_file = folder_.path() + "/password";
  std::ofstream(password_file) << "word";
  ASSERT_EQ(chmod(password_file.c_str(), 0600), 0);
  const auto one = Store(server.address()), other = Store(server.address());
  redis_.user = "cut";
  redis_.password_file = password_file;
  const auto cut = Store(server.address());
  constexpr uint64_t kOld = 20;
  Publish(one.get(), 1, kOld);
  for (TieredStore* store : {other.get(), cut.get()}) {
    const absl::Time until = Soon();
    while (Hits(store, 1, kOld) < kOld) ASSERT_LT(absl::Now(), until);
  }
  server.Ask({"ACL", "SETUSER", "cut", "off"});
  server.Ask({"CLIENT", "KILL", "USER", "cut"});
  EXPECT_EQ(Hits(cut.get(), 1, kOld), kOld) << "what is there is served";
  std::atomic<bool> stop{false};
  std::vector<std::thread> loads;
  for (TieredStore* store : {one.get(), other.get(), cut.get()}) {
    loads.emplace_back([this, store, &stop, first = 1000 * (loads.size() + 1)] {
      for (uint64_t i = 0; !stop; ++i) {
        EXPECT_TRUE(KitPublish(store, model_, Prompt(first + i % 50), {64}).ok());
        Fetch(store, 1000 + i % 3 * 1000 + i % 50);
      }
    });
  }
  ASSERT_TRUE(one->DropAll("default", false).ok());
  const absl::Time dropped = absl::Now();
  EXPECT_EQ(Hits(one.get(), 1, kOld), 0u);
  do {
    EXPECT_EQ(Hits(cut.get(), 1, kOld), kOld) << "it cannot know";
  } while (absl::Now() < dropped + absl::Seconds(1));
  const auto await_misses = [&](TieredStore* store) {
    const absl::Time until = Soon();
    while (Hits(store, 1, kOld) > 0) ASSERT_LT(absl::Now(), until);
  };
  await_misses(other.get());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Hits(other.get(), 1, kOld), 0u);
  server.Ask({"ACL", "SETUSER", "cut", "on"});
  await_misses(cut.get());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Hits(cut.get(), 1, kOld), 0u);
  stop = true;
  for (std::thread& load : loads) load.join();
  // Restarting Redis does not affect local entries.
  Publish(other.get(), 5000, 20);
  server.Kill();
  server.Start();
  EXPECT_EQ(Hits(other.get(), 5000, 20), 20u);
  ASSERT_TRUE(other->Flush(Soon()).ok());
  EXPECT_EQ(Hits(other.get(), 5000, 20), 20u);
}

}  // namespace
}  // namespace hearth
