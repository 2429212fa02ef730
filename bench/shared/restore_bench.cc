// Compares restoring a prefix from a shared engine with bare hiredis that reads the same values:
//
//   shared_restore_bench [--tls]
//
// Starts three servers; --tls: all connections use TLS. Each turn reads the values of one prompt's
// objects with hiredis, then with the engine's client, and then a new store restores the prompt.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/shared/bare_redis.h"
#include "bench/turns.h"
#include "cache_store/base/secret.h"
#include "cache_store/shared/redis/redis_cluster.h"
#include "cache_store/shared/tier/shared_spaces.h"
#include "cache_store/shared/tier/shared_store.h"
#include "proto/restore_rule.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr int kTurns = 15;
constexpr uint32_t kTokens = 4096, kChunkTokens = 128;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

struct Bench {
  RedisOptions redis;
  TestFolder folder;
  Fingerprint model;
  KitPrompt prompt{KitTokens(1, kTokens + 1), {}};

  // Returns an engine that is connected to all servers.
  std::unique_ptr<SharedEngine> Engine() const {
    auto engine = OpenRedisCluster(redis).value();
    const std::vector<std::string> names = Names(engine.get());
    engine->Exists(names, Soon());
    for (auto& value : engine->Get(names, 1 << 20, Soon())) {
      if (value.ok()) engine->Recycle(*std::move(value));
    }
    return engine;
  }
  std::unique_ptr<SharedStore> Store() const {
    StoreOptions options;
    options.secret_file = folder.path() + "/secret";
    const std::string secret = ReadOrMakeSecret(options.secret_file).value();
    SharedOptions shared;
    shared.fetch_budget = absl::Seconds(30);
    auto behind = TieredStore::Open(options).value();
    behind->WaitForMemory();
    auto store = std::make_unique<SharedStore>(std::move(behind), Engine(), secret, shared);
    store->Observe(model, prompt.tenant);
    return store;
  }
  // Returns the keys of the values that the prompt's restore point needs; empty before the publish.
  std::vector<std::string> Names(SharedEngine* engine) const {
    const std::string secret = ReadSecret(folder.path() + "/secret").value();
    const KvLayout layout = model.Layout().value();
    SystemClock clock;
    StoreOptions options;
    options.secret_file = folder.path() + "/secret";
    const auto store = TieredStore::Open(options).value();
    SharedSpaces spaces(engine, store.get(), &clock, &clock, secret, absl::Minutes(1));
    const auto space = spaces.Of(prompt.tenant, Soon());
    if (absl::IsNotFound(space.status())) return {};
    const SharedPrompt named{
        *space, layout,
        std::make_shared<const PromptChain>(
            MakeChain(layout, (*space)->RootOf(model.digest()), prompt.tokens, {}, kTokens, {})),
        prompt.tokens};
    std::vector<std::string> names;
    for (const ObjectId& id : NeededObjects(layout, kTokens)) {
      const uint32_t parts = named.ShapeOf(id).parts();
      for (uint32_t part = 0; part < parts; ++part) names.push_back(named.NameOf(id, part));
    }
    return names;
  }
};

// Milliseconds per turn, by the clock and of processor time. Processor time is that of this
// process, without the servers.
struct Times {
  std::vector<double> wall, processor;

  void Add(absl::FunctionRef<void()> work) {
    const double before = ProcessorSeconds();
    wall.push_back(1e3 * Seconds(work));
    processor.push_back(1e3 * (ProcessorSeconds() - before));
  }
};

void Turn(const Bench& bench, BareRedis* hiredis, Times* bare, Times* client, Times* restore,
          uint64_t* bytes) {
  const auto engine = bench.Engine();
  const std::vector<std::string> names = bench.Names(engine.get());
  *bytes = 0;
  bare->Add([&] {
    for (const auto& reply : hiredis->Ask("GET", names)) *bytes += reply->len;
  });
  client->Add([&] {
    auto values = engine->Get(names, 1 << 20, Soon());
    for (const auto& value : values) RequireOk(value.status());
  });
  const auto store = bench.Store();
  store->Fetch(KitQuery(bench.model, {KitTokens(2, 200), {}}), 0, 0).IgnoreError();
  restore->Add([&] {
    const auto session = store->Fetch(KitQuery(bench.model, bench.prompt), 0, 0);
    RequireOk(session.status());
    if ((*session)->plan().usable_tokens != kTokens) std::exit(1);
  });
}

double MedianRatio(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> ratios;
  for (size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / to[i]);
  return Median(ratios);
}

void Print(const char* what, const Times& times, const Times& bare, double mib) {
  std::printf("%s %.0f MiB/s, %.2f of bare hiredis; %.2f of its processor time\n", what,
              mib / Median(times.wall) * 1e3, MedianRatio(bare.wall, times.wall),
              MedianRatio(times.processor, bare.processor));
}

int Main(bool use_tls) {
  KitModel model;
  model.chunk_tokens = kChunkTokens;
  model.window = 512;
  model.head_dim = 256;
  model.layer_types = "lllllglllllglllllg";  // the layers of Gemma 3 270M
  model.exact = false;
  BenchServers servers(3, use_tls);
  Bench bench{servers.Client(), {}, model.Make()};
  const auto published =
      KitPublish(bench.Store().get(), bench.model, bench.prompt, {kTokens}, Durability::kShared);
  if (!published.ok() || published->durable != Durability::kShared) return 1;
  BareRedis hiredis(&servers);
  Times bare, client, restore;
  uint64_t bytes = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    Turn(bench, &hiredis, &bare, &client, &restore, &bytes);
  }
  const double mib = static_cast<double>(bytes) / (1 << 20);
  std::printf("%.0f MiB; bare hiredis %.0f MiB/s\n", mib, mib / Median(bare.wall) * 1e3);
  Print("the engine's client", client, bare, mib);
  Print("restored", restore, bare, mib);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  return hearth::Main(argc > 1 && std::strcmp(argv[1], "--tls") == 0);
}
