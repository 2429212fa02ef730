// Restoring a prefix from an engine that stores share, against its bare values:
// shared_restore_bench HOST:PORT[,HOST:PORT...], of Redis servers that hold nothing else.
//
// Each turn reads the values of one prompt's objects as they are, then probes for them, then has a
// new store restore the prompt; the least time of each is printed.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/base/secret.h"
#include "cache_store/shared/redis/redis_cluster.h"
#include "cache_store/shared/tier/shared_store.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr int kTurns = 7;
constexpr uint32_t kTokens = 4096, kChunkTokens = 128;

struct Bench {
  std::string addresses;
  TestFolder folder;
  Fingerprint model;
  KitPrompt prompt{KitTokens(1, kTokens + 1), {}};

  std::unique_ptr<RedisCluster> Engine() const {
    return RedisCluster::Open(ParseRedisUrl("redis://" + addresses).value()).value();
  }
  std::unique_ptr<SharedStore> Store() const {
    StoreOptions options;
    options.host_bytes = 512 * kMiB;
    options.secret_file = folder.path() + "/secret";
    const std::string secret = ReadOrMakeSecret(options.secret_file).value();
    SharedOptions shared;
    shared.fetch_budget = absl::Seconds(30);
    auto store =
        std::make_unique<SharedStore>(TieredStore::Open(options).value(), Engine(), secret, shared);
    store->Observe(model, prompt.tenant);
    store->WaitForMemory();
    return store;
  }
  // The values of the prompt's restore point.
  std::vector<std::string> Names() const {
    const std::string secret = ReadSecret(folder.path() + "/secret").value();
    const KvLayout layout = model.Layout().value();
    const SharedPrompt named{std::make_shared<const SharedSpace>(secret, prompt.tenant, 0), layout,
                             MakeChain(layout, RootKey(model.digest(), prompt.tenant, secret),
                                       prompt.tokens, {}, kTokens, {}),
                             prompt.tokens};
    std::vector<std::string> names;
    for (const ObjectId& id : NeededObjects(layout, kTokens)) {
      const uint32_t parts = named.ShapeOf(id).parts();
      for (uint32_t part = 0; part < parts; ++part) names.push_back(named.NameOf(id, part));
    }
    return names;
  }
};

template <typename Work>
double Seconds(Work work) {
  const absl::Time start = absl::Now();
  work();
  return absl::ToDoubleSeconds(absl::Now() - start);
}

int Main(int argc, char** argv) {
  if (argc != 2) return 2;
  KitModel model;
  model.chunk_tokens = kChunkTokens;
  model.window = 512;
  model.head_dim = 256;
  model.layer_types = "lllllglllllglllllg";  // 270M
  model.exact = false;
  Bench bench{argv[1], {}, model.Make()};
  const auto published =
      KitPublish(bench.Store().get(), bench.model, bench.prompt, {kTokens}, Durability::kShared);
  if (!published.ok() || published->durable != Durability::kShared) return 1;
  const std::vector<std::string> names = bench.Names();
  double bare = 1e9, probe = 1e9, restore = 1e9;
  uint64_t bytes = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto engine = bench.Engine();
    engine->Exists({names[0]}, absl::Now() + absl::Seconds(30));
    bytes = 0;
    bare = std::min(
        bare, Seconds([&] {
          for (const auto& value : engine->Get(names, 1 << 20, absl::Now() + absl::Seconds(30))) {
            bytes += value.value().size();
          }
        }));
    const std::vector<std::string> probed(512, names[0]);
    probe =
        std::min(probe, Seconds([&] { engine->Exists(probed, absl::Now() + absl::Seconds(30)); }));
    const auto store = bench.Store();
    store->Fetch(KitQuery(bench.model, {KitTokens(2, 200), {}}), 0, 0).IgnoreError();  // connects
    restore = std::min(restore, Seconds([&] {
                         const auto session =
                             store->Fetch(KitQuery(bench.model, bench.prompt), 0, 0);
                         if (!session.ok() || (*session)->plan().usable_tokens != kTokens)
                           bytes = 0;
                       }));
    if (bytes == 0) return 1;
  }
  const double mib = static_cast<double>(bytes) / (1 << 20);
  std::printf(
      "%zu values, %.0f MiB: bare %.0f MiB/s, restored %.0f MiB/s, %.2f of it; "
      "probe of 512 keys %.2f ms\n",
      names.size(), mib, mib / bare, mib / restore, bare / restore, 1e3 * probe);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
