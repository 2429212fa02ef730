// Fetches from an engine that has room for a share of what is asked for, so that values vanish all
// the time: shared_evicted_bench [FETCHES [SHARE]], 100000 and 0.3 unless told.
//
// Three Redis of its own evict by the end of life; three stores with little RAM share them. Every
// byte that is served is compared, and each part that was gone when it was read is counted here, at
// the engine's door, and compared with what the stores counted. Ends with 1 where a byte was wrong,
// a fetch failed, a count differs, or nothing was evicted.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/base/secret.h"
#include "cache_store/shared/redis/redis_cluster.h"
#include "cache_store/shared/tier/shared_store.h"
#include "tests/cache_store/shared/redis_servers.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr int kStores = 3, kThreads = 4;
constexpr uint32_t kSeeds = 400, kChunks = 16, kChunkTokens = 16;
constexpr uint32_t kLargeSeeds = 16;  // of objects of several parts
constexpr int kOneLargeIn = 50;

bool IsPart(absl::string_view name) {
  return absl::StrContains(name, ":g:") || absl::StrContains(name, ":l:");
}

// Counts what a store's reads of parts found.
class WatchedEngine final : public SharedEngine {
 public:
  explicit WatchedEngine(std::unique_ptr<SharedEngine> engine) : engine_(std::move(engine)) {}

  std::vector<absl::StatusOr<bool>> Exists(absl::Span<const std::string> keys,
                                           absl::Time deadline) override {
    return engine_->Exists(keys, deadline);
  }
  Later GetLater(std::vector<std::string> keys, uint64_t max_bytes, absl::Time deadline) override {
    return [this, keys, later = engine_->GetLater(keys, max_bytes, deadline)] {
      Values values = later();
      for (size_t i = 0; i < keys.size(); ++i) {
        if (!IsPart(keys[i])) continue;
        read += values[i].ok();
        vanished += absl::IsNotFound(values[i].status());
      }
      return values;
    };
  }
  std::vector<absl::StatusOr<bool>> Set(absl::Span<const SharedValue> values,
                                        absl::Time deadline) override {
    return engine_->Set(values, deadline);
  }
  std::vector<absl::Status> PutOff(absl::Span<const SharedExpiry> expiries,
                                   absl::Time deadline) override {
    return engine_->PutOff(expiries, deadline);
  }
  std::vector<absl::Status> Erase(absl::Span<const std::string> keys,
                                  absl::Time deadline) override {
    return engine_->Erase(keys, deadline);
  }
  SharedEngineStats Stats() const override { return engine_->Stats(); }

  std::atomic<uint64_t> read{0}, vanished{0};

 private:
  const std::unique_ptr<SharedEngine> engine_;
};

struct Node {
  WatchedEngine* engine = nullptr;
  std::unique_ptr<SharedStore> store;

  uint64_t Of(Counter counter) const { return store->Stats().Of(counter); }
};

Node MakeNode(const TestFolder& folder, const std::string& addresses) {
  StoreOptions options;
  options.host_bytes = 8 * kMiB;
  options.secret_file = folder.path() + "/secret";
  const std::string secret = ReadOrMakeSecret(options.secret_file).value();
  auto engine = std::make_unique<WatchedEngine>(
      RedisCluster::Open(ParseRedisUrl("redis://" + addresses).value()).value());
  Node node;
  node.engine = engine.get();
  SharedOptions shared;
  shared.fetch_budget = absl::Seconds(5);
  node.store = std::make_unique<SharedStore>(TieredStore::Open(options).value(), std::move(engine),
                                             secret, shared);
  return node;
}

struct Asked {
  const Fingerprint* model = nullptr;
  KitPrompt prompt;
  uint32_t boundary = 0;
};

// What is asked for: beginnings of some texts, of a model with small objects; and now and then a
// prompt of one whose objects are of several parts.
class Population {
 public:
  Population() {
    KitModel small, large;
    small.head_dim = 32;
    small.exact = large.exact = false;
    large.head_dim = 256;
    large.layer_types = std::string(40, 'g');
    small_ = small.Make();
    large_ = large.Make();
  }
  Asked Small(uint32_t seed, uint32_t chunks) const {
    return {&small_, {KitTokens(seed, chunks * kChunkTokens + 1), {}}, chunks * kChunkTokens};
  }
  Asked Large(uint32_t seed) const {
    return {&large_, {KitTokens(1'000'000 + seed, 2 * kChunkTokens + 1), {}}, 2 * kChunkTokens};
  }
  Asked Draw(std::minstd_rand* random) const {
    if ((*random)() % kOneLargeIn == 0) return Large((*random)() % kLargeSeeds);
    const double drawn = std::uniform_real_distribution<double>()(*random);
    // Some are asked for far more often than others.
    const auto seed = static_cast<uint32_t>(kSeeds * drawn * drawn * drawn);
    return Small(seed, 1 + (*random)() % kChunks);
  }
  std::vector<Asked> All() const {
    std::vector<Asked> all;
    for (uint32_t seed = 0; seed < kSeeds; ++seed) all.push_back(Small(seed, kChunks));
    for (uint32_t seed = 0; seed < kLargeSeeds; ++seed) all.push_back(Large(seed));
    return all;
  }

 private:
  Fingerprint small_, large_;
};

uint64_t Info(const RedisProcess& server, absl::string_view section, absl::string_view field) {
  const std::string text = server.Ask({"info", std::string(section)});
  const size_t at = text.find(absl::StrCat("\n", field, ":"));
  return at == std::string::npos ? 0
                                 : std::strtoull(text.c_str() + at + field.size() + 2, nullptr, 10);
}

// The engine holds all of it once, and from now on a share of that.
void Shrink(const Population& population, Node* node, RedisServers* servers, double share) {
  std::vector<uint64_t> empty;
  for (int i = 0; i < servers->size(); ++i) {
    empty.push_back(Info(servers->at(i), "memory", "used_memory"));
  }
  for (const Asked& asked : population.All()) {
    KitPublish(node->store.get(), *asked.model, asked.prompt, {asked.boundary}, Durability::kShared)
        .status()
        .IgnoreError();
  }
  for (int i = 0; i < servers->size(); ++i) {
    const uint64_t all = Info(servers->at(i), "memory", "used_memory") - empty[i];
    const auto room = empty[i] + static_cast<uint64_t>(share * static_cast<double>(all));
    servers->at(i).Ask({"config", "set", "maxmemory", absl::StrCat(room)});
    std::printf("server %d: %.1f MiB of values, from now on room for %.1f\n", i,
                static_cast<double>(all) / kMiB, share * static_cast<double>(all) / kMiB);
  }
}

struct Counts {
  std::atomic<int64_t> left{0};
  std::atomic<uint64_t> hits{0}, wrong{0}, failed{0};
};

void Ask(const Population& population, std::vector<Node>* nodes, uint32_t seed, Counts* counts) {
  std::minstd_rand random(seed);
  while (counts->left.fetch_sub(1) > 0) {
    const Asked asked = population.Draw(&random);
    SharedStore* const store = (*nodes)[random() % nodes->size()].store.get();
    const auto tokens = KitFetch(store, *asked.model, asked.prompt);
    if (!tokens.ok()) {
      // kInternal: bytes that differ.
      ++(absl::IsInternal(tokens.status()) ? counts->wrong : counts->failed);
      std::printf("%s\n", tokens.status().ToString().c_str());
      continue;
    }
    if (*tokens >= asked.boundary) {
      ++counts->hits;
    } else if (!KitPublish(store, *asked.model, asked.prompt, {asked.boundary}).ok()) {
      ++counts->failed;
    }
  }
}

int Report(const std::vector<Node>& nodes, RedisServers* servers, const Counts& counts,
           int64_t fetches, double seconds) {
  uint64_t read = 0, vanished = 0, counted = 0, rejected = 0, evicted = 0, hits = 0;
  for (const Node& node : nodes) {
    read += node.engine->read;
    vanished += node.engine->vanished;
    counted += node.Of(Counter::kSharedVanishedParts);
    rejected += node.Of(Counter::kSharedRejectedValues);
    hits += node.Of(Counter::kSharedHits);
  }
  for (int i = 0; i < servers->size(); ++i) {
    evicted += Info(servers->at(i), "stats", "evicted_keys");
  }
  std::printf(
      "%lld fetches in %.0f s: %.3f restored whole, %llu from the engine; %llu parts read, %llu "
      "evicted, %llu vanished, %llu counted; %llu rejected, %llu wrong, %llu failed\n",
      static_cast<long long>(fetches), seconds,
      static_cast<double>(counts.hits) / static_cast<double>(fetches),
      static_cast<unsigned long long>(hits), static_cast<unsigned long long>(read),
      static_cast<unsigned long long>(evicted), static_cast<unsigned long long>(vanished),
      static_cast<unsigned long long>(counted), static_cast<unsigned long long>(rejected),
      static_cast<unsigned long long>(counts.wrong.load()),
      static_cast<unsigned long long>(counts.failed.load()));
  const bool is_right = counts.wrong == 0 && counts.failed == 0 && rejected == 0 &&
                        vanished == counted && evicted > 0 && hits > 0;
  return is_right ? 0 : 1;
}

int Main(int argc, char** argv) {
  const int64_t fetches = argc > 1 ? std::atoll(argv[1]) : 100'000;
  const double share = argc > 2 ? std::atof(argv[2]) : 0.3;
  RedisServers servers(
      {3, 0, false, {"--maxmemory-policy", "volatile-ttl", "--maxmemory-samples", "64"}});
  const TestFolder folder;
  std::vector<Node> nodes;
  for (int i = 0; i < kStores; ++i) nodes.push_back(MakeNode(folder, servers.addresses()));
  const Population population;
  Shrink(population, &nodes[0], &servers, share);
  Counts counts;
  counts.left = fetches;
  const absl::Time start = absl::Now();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(Ask, std::cref(population), &nodes, 1 + i, &counts);
  }
  for (std::thread& thread : threads) thread.join();
  return Report(nodes, &servers, counts, fetches, absl::ToDoubleSeconds(absl::Now() - start));
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
