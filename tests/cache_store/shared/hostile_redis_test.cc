// The shared engine's client with servers that send wrong answers, stall or hang up: only the keys
// of these servers fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/shared/redis/slot_map.h"
#include "tests/cache_store/shared/fake_redis.h"
#include "tests/cache_store/shared/redis_kit.h"

namespace hearth {
namespace {

using Answer = FakeRedis::Answer;
using Words = FakeRedis::Words;

// Returns the handler of a server without a cluster that sends the same answer to each command.
FakeRedis::Handler Always(const std::string& bytes, bool closes = false) {
  return [=](const Words& words) -> Answer {
    if (words[0] == "CLUSTER") return {kNoCluster};
    return {bytes, closes};
  };
}

std::vector<std::string> Keys(int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(absl::StrCat("key-", i));
  return keys;
}

// Returns an address without a server; each number gives a different address.
NodeAddress Nowhere(int number) {
  return {absl::StrCat("127.1.", number / 250, ".", 1 + number % 250), 1};
}

absl::Status GetOne(SharedEngine* engine) {
  return engine->Get({"key"}, kMaxBytes, Soon())[0].status();
}

TEST(HostileRedis, MalformedReplyIsDataLoss) {
  for (const std::string& answer :
       {std::string("$1000000000\r\n") + std::string(100000, 'x'),
        std::string("$1002\r\n") + std::string(1002, 'x') + "\r\n",
        std::string("+") + std::string(100000, 'x'), std::string("*1000000000\r\n"),
        std::string("*1\r\n$1\r\nx\r\n"),
        std::string("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"),
        std::string("$99999999999999999999999\r\n"), std::string("$-7\r\n"), std::string("*-7\r\n"),
        std::string("!9\r\n"), std::string(":12a\r\n"), std::string("\r\n\r\n\r\n"),
        // Replies in protocol version 3, which the client did not request.
        std::string(">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"), std::string("_\r\n"),
        std::string("#t\r\n"), std::string(",1.5\r\n"), std::string("(1\r\n"),
        std::string("%1\r\n+a\r\n:1\r\n"), std::string("~1\r\n:1\r\n"),
        std::string("=7\r\ntxt:abc\r\n"), std::string("|1\r\n+a\r\n:1\r\n:1\r\n")}) {
    FakeRedis redis(Always(answer));
    const auto engine = OpenAt({redis.address()});
    EXPECT_EQ(GetOne(engine.get()).code(), absl::StatusCode::kDataLoss) << answer.substr(0, 40);
  }
}

TEST(HostileRedis, UnrequestedReplyClosesConnection) {
  FakeRedis redis(Always("$5\r\nvalue\r\n"), "+PONG\r\n+PONG\r\n+PONG\r\n");
  const auto engine = OpenAt({redis.address()});
  EXPECT_FALSE(GetOne(engine.get()).ok());
  FakeRedis chatty(Always("$5\r\nvalue\r\n$5\r\nother\r\n"));
  const auto other = OpenAt({chatty.address()});
  EXPECT_EQ(other->Get({"key"}, kMaxBytes, Soon())[0].value(), "value");
  // The value that was sent without a request is discarded, and the connection is closed.
  EXPECT_NE(other->Get({"key"}, kMaxBytes, Soon())[0].value_or("none"), "other");
}

TEST(HostileRedis, WrongReplyIsDataLoss) {
  for (const std::string answer : {"+OK\r\n", "$3\r\nabc\r\n", "$-1\r\n"}) {
    FakeRedis redis(Always(answer));
    const auto engine = OpenAt({redis.address()});
    const auto exists = engine->Exists({"key"}, Soon());
    EXPECT_TRUE(absl::IsDataLoss(exists[0].status())) << answer;
    EXPECT_TRUE(absl::IsDataLoss(engine->Erase({"key"}, Soon())[0])) << answer;
  }
  for (const std::string answer : {":1\r\n", "$3\r\nabc\r\n", "$-1\r\n"}) {
    FakeRedis redis(Always(answer));
    const auto engine = OpenAt({redis.address()});
    EXPECT_TRUE(absl::IsDataLoss(engine->Set({{"key", "v"}}, Soon())[0].status())) << answer;
  }
  for (const std::string answer : {":1\r\n", "+abc\r\n", "$-1\r\n"}) {
    FakeRedis redis(Always(answer));
    const auto engine = OpenAt({redis.address()});
    EXPECT_TRUE(absl::IsDataLoss(GetOne(engine.get()))) << answer;
  }
}

TEST(HostileRedis, ErrorReplySetsStatusCode) {
  const std::pair<const char*, absl::StatusCode> kCases[] = {
      {"-OOM command not allowed\r\n", absl::StatusCode::kResourceExhausted},
      {"-NOPERM this user has no permissions\r\n", absl::StatusCode::kPermissionDenied},
      {"-NOAUTH Authentication required.\r\n", absl::StatusCode::kPermissionDenied},
      {"-LOADING Redis is loading the dataset\r\n", absl::StatusCode::kUnavailable},
      {"-CLUSTERDOWN The cluster is down\r\n", absl::StatusCode::kUnavailable},
      {"-READONLY You can't write\r\n", absl::StatusCode::kUnavailable},
      {"-TRYAGAIN Multiple keys request\r\n", absl::StatusCode::kUnavailable},
      {"-MOVED 1 nowhere\r\n", absl::StatusCode::kUnavailable},
      {"-MOVED 1 a host:70\r\n", absl::StatusCode::kUnavailable},
      {"-MOVED 1 host:99999\r\n", absl::StatusCode::kUnavailable},
      {"-ASK\r\n", absl::StatusCode::kUnavailable},
      {"-\r\n", absl::StatusCode::kInternal},
      {"-ERR \x01\x02\r\n", absl::StatusCode::kInternal},
  };
  for (const auto& [answer, code] : kCases) {
    FakeRedis redis(Always(answer));
    const auto engine = OpenAt({redis.address()});
    EXPECT_EQ(GetOne(engine.get()).code(), code) << answer;
  }
}

TEST(HostileRedis, PartialReplyCausesReconnect) {
  std::atomic<bool> hangs_up{true};
  FakeRedis redis([&](const Words& words) -> Answer {
    if (words[0] == "CLUSTER") return {kNoCluster};
    if (hangs_up) return {"$100\r\nhalf", true};
    return {"$5\r\nvalue\r\n"};
  });
  const auto engine = OpenAt({redis.address()});
  EXPECT_TRUE(absl::IsUnavailable(GetOne(engine.get())));
  hangs_up = false;
  while (!GetOne(engine.get()).ok()) {
  }
  EXPECT_EQ(engine->Get({"key"}, kMaxBytes, Soon())[0].value(), "value");
}

// Reads are neither delayed nor refused while the answer to a write is missing.
TEST(HostileRedis, ReadsContinueDuringUnansweredWrite) {
  FakeRedis redis([](const Words& words) -> Answer {
    if (words[0] == "CLUSTER") return {kNoCluster};
    if (words[0] == "SET" && words[2].size() > 1000) return {""};
    return {words[0] == "SET" ? "+OK\r\n" : words[0] == "EXISTS" ? ":1\r\n" : "$5\r\nvalue\r\n"};
  });
  const auto engine = OpenAt({redis.address()}, kShortSilence);
  const std::string content(size_t{1} << 20, 'x');
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    EXPECT_TRUE(absl::IsUnavailable(engine->Set({{"key", content}}, Soon())[0].status()));
    is_over = true;
  });
  do {
    EXPECT_TRUE(engine->Exists({"key"}, Soon())[0].value_or(false));
    EXPECT_EQ(engine->Get({"key"}, 1 << 20, Soon())[0].value_or("none"), "value");
    EXPECT_TRUE(engine->Set({{"lease", "x"}}, Soon())[0].value_or(false));
  } while (!is_over);
  writer.join();
  EXPECT_TRUE(engine->Exists({"key"}, Soon())[0].value_or(false));
}

TEST(HostileRedis, ProbesContinueDuringUnansweredRead) {
  FakeRedis redis([](const Words& words) -> Answer {
    if (words[0] == "CLUSTER") return {kNoCluster};
    return {words[0] == "EXISTS" ? ":1\r\n" : ""};
  });
  const auto engine = OpenAt({redis.address()}, kShortSilence);
  std::atomic<bool> is_over{false};
  std::thread reader([&] {
    EXPECT_TRUE(absl::IsUnavailable(engine->Get({"key"}, 1 << 20, Soon())[0].status()));
    is_over = true;
  });
  do {
    EXPECT_TRUE(engine->Exists({"key"}, Soon())[0].value_or(false));
  } while (!is_over);
  reader.join();
}

TEST(HostileRedis, StalledServerFailsLargeWrites) {
  FakeRedis redis([](const Words& words) -> Answer {
    if (words[0] == "CLUSTER") return {kNoCluster};
    if (words[0] == "SET") return {"", false, false, true};
    return {":1\r\n"};
  });
  const auto engine = OpenAt({redis.address()}, kShortSilence);
  const std::string content(size_t{4} << 20, 'x');
  const std::vector<std::string> keys = Keys(16);
  std::vector<SharedValue> values;
  for (const std::string& key : keys) values.push_back({key, content});
  for (const auto& written : engine->Set(values, Soon())) {
    EXPECT_TRUE(absl::IsUnavailable(written.status())) << written.status();
  }
  EXPECT_TRUE(engine->Exists({"key"}, Soon())[0].value_or(false));
  // Values that cannot be sent are not copied: a copy is made only when the value is sent.
  EXPECT_LT(engine->Stats().sent_bytes, content.size() * 3);
}

// The client probes the address less and less often, because a slot map may have a thousand such
// addresses.
TEST(HostileRedis, UnreachableAddressBacksOff) {
  RedisOptions options;
  options.addresses = {{"127.0.0.1", 1}};
  options.probe_pause = absl::Milliseconds(10);
  const absl::Time start = absl::Now();
  const auto engine = OpenRedisCluster(options).value();
  while (absl::Now() - start < 40 * options.probe_pause) {
    EXPECT_FALSE(GetOne(engine.get()).ok());
  }
  // The pauses are 10, 20, 40 and then 80 ms, each plus or minus a quarter.
  const uint64_t reconnects = engine->Stats().reconnects;
  EXPECT_LE(reconnects, 4 + (absl::Now() - start) / (8 * 0.75 * options.probe_pause));
}

TEST(HostileRedis, ReconnectsAreRateLimited) {
  FakeRedis redis([](const Words&) -> Answer { return {"", true}; });
  const absl::Time start = absl::Now();
  const auto engine = OpenAt({redis.address()});
  for (int call = 0; call < 2000; ++call) EXPECT_FALSE(GetOne(engine.get()).ok());
  const absl::Duration pause = RedisOptions().probe_pause * 0.75;
  const int connections = redis.connections();
  EXPECT_LE(connections, 2 + (absl::Now() - start) / pause);
}

// Fixture: a cluster of one hostile and one honest node.
class HostileRedisNode : public testing::Test {
 protected:
  HostileRedisNode()
      : honest_([this](const Words& words) { return Honest(words); }),
        hostile_([this](const Words& words) {
          if (words[0] == "CLUSTER") return Honest(words);
          absl::MutexLock lock(&mutex_);
          return hostile_answer_;
        }) {}
  void Answers(Answer answer) {
    absl::MutexLock lock(&mutex_);
    hostile_answer_ = std::move(answer);
  }
  Answer Honest(const Words& words) {
    if (words[0] == "CLUSTER") {
      ++maps_;
      return {FakeRedis::Slots({hostile_.address(), honest_.address()})};
    }
    return {":1\r\n"};
  }
  static bool IsHonests(const std::string& key) { return KeySlot(key) >= kHashSlots / 2; }
  // Expects that exactly the hostile node's keys fail, of a hundred keys.
  void ExpectHalfFails(SharedEngine* engine, absl::Time deadline) {
    const std::vector<std::string> keys = Keys(100);
    const auto exists = engine->Exists(keys, deadline);
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(exists[i].ok(), IsHonests(keys[i])) << exists[i].status();
    }
  }

  std::atomic<int> maps_{0};
  absl::Mutex mutex_;
  Answer hostile_answer_ ABSL_GUARDED_BY(mutex_);
  FakeRedis honest_, hostile_;
};

TEST_F(HostileRedisNode, SilentNodeFailsItsKeys) {
  Answers({""});
  const auto engine = OpenAt({honest_.address()}, kShortSilence);
  ExpectHalfFails(engine.get(), Soon());
  ExpectHalfFails(engine.get(), Soon());
}

TEST_F(HostileRedisNode, TricklingNodeFailsItsKeys) {
  // The node sends a byte every 10 ms, so the answer takes much longer than the client waits.
  Answers({"$1000\r\n" + std::string(900, 'x'), false, true});
  const auto engine = OpenAt({honest_.address()}, kShortSilence);
  const auto got = engine->Get(Keys(100), kMaxBytes, Soon());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(absl::IsDataLoss(got[i].status()), IsHonests(Keys(100)[i])) << got[i].status();
  }
}

TEST_F(HostileRedisNode, RedirectLoopFailsItsKeys) {
  Answers({absl::StrCat("-MOVED 1 ", hostile_.address().Text(), "\r\n")});
  const absl::Time start = absl::Now();
  const auto engine = OpenAt({honest_.address()});
  ExpectHalfFails(engine.get(), Soon());
  Answers({absl::StrCat("-ASK 1 ", hostile_.address().Text(), "\r\n")});
  ExpectHalfFails(engine.get(), Soon());
  EXPECT_GT(engine->Stats().redirections, 0u);
  // However many redirections there are, the slot map is requested at most once in 200 ms.
  const int maps = maps_;
  EXPECT_LE(maps, 2 + (absl::Now() - start) / absl::Milliseconds(200));
}

TEST_F(HostileRedisNode, RedirectToMissingNodeFailsItsKeys) {
  Answers({"-MOVED 1 127.0.0.1:1\r\n"});
  const auto engine = OpenAt({honest_.address()});
  ExpectHalfFails(engine.get(), Soon());
  Answers({"-MOVED 1 no-such-host.invalid:7000\r\n"});
  const auto other = OpenAt({honest_.address()});
  // Without a network, the name server may not answer before the deadline.
  ExpectHalfFails(other.get(), absl::Now() + absl::Seconds(30));
}

// Each redirection names a different host.
TEST_F(HostileRedisNode, NumberOfRedirectTargetsIsLimited) {
  std::atomic<int> places{0};
  FakeRedis redis([&](const Words& words) -> Answer {
    if (words[0] == "CLUSTER") return Honest(words);
    return {absl::StrCat("-MOVED 1 ", Nowhere(++places).Text(), "\r\n")};
  });
  Answers({absl::StrCat("-MOVED 1 ", redis.address().Text(), "\r\n")});
  const auto engine = OpenAt({honest_.address()});
  const std::vector<std::string> keys = Keys(4000);
  const auto exists = engine->Exists(keys, Soon());
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(exists[i].ok(), IsHonests(keys[i]));
  EXPECT_GT(places, 1000);
  EXPECT_LE(engine->Stats().nodes, 300u);
}

TEST(HostileRedis, OversizedSlotMapIsRefused) {
  std::atomic<int> maps{0}, named{999};
  FakeRedis redis([&](const Words& words) -> Answer {
    if (words[0] != "CLUSTER") return {":1\r\n"};
    ++maps;
    std::vector<NodeAddress> nodes;
    for (int i = 0; i < named; ++i) nodes.push_back(Nowhere(i));
    nodes.push_back(redis.address());
    return {FakeRedis::Slots(nodes)};
  });
  const auto engine = OpenAt({redis.address()});
  int last = 0;
  while (KeySlot(absl::StrCat(last)) != kHashSlots - 1) ++last;
  for (const auto& exists : engine->Exists(Keys(100), Soon())) EXPECT_FALSE(exists.ok());
  EXPECT_TRUE(engine->Exists({absl::StrCat(last)}, Soon())[0].value_or(false));
  EXPECT_EQ(engine->Stats().shards, 1000u);
  EXPECT_LE(engine->Stats().nodes, 1001u);
  // A slot map with this many nodes is refused.
  named = 5000;
  for (const int before = maps; maps < before + 2;) {
    EXPECT_TRUE(engine->Exists({absl::StrCat(last)}, Soon())[0].value_or(false));
  }
  EXPECT_EQ(engine->Stats().shards, 1000u);
}

TEST(HostileRedis, InvalidSlotMapIsRefused) {
  const std::string host = "*3\r\n$9\r\n127.0.0.1\r\n:7000\r\n$2\r\nid\r\n";
  for (const std::string& map :
       {std::string("*0\r\n"), std::string("+OK\r\n"), std::string(":1\r\n"),
        std::string("*1\r\n:1\r\n"), std::string("*1\r\n*2\r\n:0\r\n:1\r\n"),
        "*1\r\n*3\r\n:0\r\n:16384\r\n" + host, "*1\r\n*3\r\n:-1\r\n:5\r\n" + host,
        "*1\r\n*3\r\n:7\r\n:5\r\n" + host, "*1\r\n*3\r\n$1\r\n0\r\n:5\r\n" + host,
        std::string("*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$3\r\na b\r\n:7000\r\n"),
        std::string("*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\na\r\n:0\r\n"),
        std::string("*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\na\r\n:65536\r\n"),
        std::string("*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n:1\r\n:7000\r\n"), std::string("*262145\r\n"),
        std::string("-ERR no\r\n")}) {
    FakeRedis redis([&](const Words& words) -> Answer {
      return {words[0] == "CLUSTER" ? map : "$5\r\nvalue\r\n"};
    });
    const auto engine = OpenAt({redis.address()});
    EXPECT_FALSE(GetOne(engine.get()).ok()) << map;
  }
}

TEST(HostileRedis, SameSingleServerIsKeptInUse) {
  std::atomic<int> maps{0};
  const auto named = [&](const std::string& name) {
    return [&maps, name](const Words& words) -> Answer {
      if (words[0] == "CLUSTER") {
        ++maps;
        return {kNoCluster};
      }
      if (words[1] == "loading") return {"-LOADING it loads\r\n"};
      return {absl::StrCat("$3\r\n", name, "\r\n")};
    };
  };
  FakeRedis one(named("one")), two(named("two"));
  const auto engine = OpenAt({one.address(), two.address()});
  const std::string first = engine->Get({"key"}, kMaxBytes, Soon())[0].value();
  while (maps < 8) {
    engine->Get({"loading"}, kMaxBytes, Soon());  // makes the client request the slot map
    ASSERT_EQ(engine->Get({"key"}, kMaxBytes, Soon())[0].value(), first);
  }
}

TEST(HostileRedis, ServerWithInvalidRepliesIsReplaced) {
  FakeRedis liar([](const Words&) -> Answer { return {"*0\r\n"}; });
  FakeRedis honest(Always("$5\r\nvalue\r\n"));
  const auto engine = OpenAt({liar.address(), honest.address()});
  while (!GetOne(engine.get()).ok()) {
  }
  EXPECT_EQ(engine->Get({"key"}, kMaxBytes, Soon())[0].value(), "value");
}

}  // namespace
}  // namespace hearth
