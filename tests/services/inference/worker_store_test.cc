// Two workers and a real store, over gRPC and in one process: cold logits equal the logits with a
// prefix from each tier.

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/programs/store_link.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/fake_device.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

// A worker whose store is the server at `address`.
struct StoreWorker {
  explicit StoreWorker(const std::string& address, const WorkerServer::Options& options = {},
                       ImportDevice import = nullptr)
      : server(options) {
    cache = std::make_unique<RemotePrefixCache>(
        ConnectedTo(address), server.engine()->fingerprint(), server.engine()->layout(), &counters,
        /*shared_memory=*/true, std::move(import));
    server.SetCache(cache.get());
  }
  CacheCounters counters;
  std::unique_ptr<RemotePrefixCache> cache;  // destroyed after the engine
  WorkerServer server;
};

// A worker whose store runs in the worker's own process.
struct EmbeddedWorker {
  EmbeddedWorker() {
    StoreLink::Options options;
    options.spec = "embedded:";
    options.embedded = StoreServer::SmallStore("");
    link = *StoreLink::Open(options, *server.engine(), &admission);
    server.SetCache(link->cache());
  }
  Admission admission;
  std::unique_ptr<StoreLink> link;  // destroyed after the engine
  WorkerServer server{WorkerServer::Options()};
};

v1::GenerateRequest LongRequest() {
  v1::GenerateRequest request = IdsRequest(CountingTokens(100), 4);
  request.mutable_prompt()->add_breakpoints(53);
  request.set_wait_published(true);
  return request;
}

void ExpectSame(const Generation& warm, const Generation& cold, uint32_t cached, v1::Tier tier) {
  ASSERT_TRUE(warm.status.ok()) << warm.status.error_message();
  EXPECT_EQ(warm.started.cached_tokens(), cached);
  EXPECT_EQ(warm.started.source_tier(), tier) << v1::Tier_Name(warm.started.source_tier());
  EXPECT_EQ(warm.finished.first_logits_sha256(), cold.finished.first_logits_sha256());
  EXPECT_EQ(warm.ids, cold.ids);
}

TEST(WorkerAndStore, LogitsEqualFromEveryTier) {
  const TestFolder folder;
  StoreOptions options = StoreServer::SmallStore(folder.path());
  Generation cold;
  std::string address;
  {
    StoreServer store(options);
    address = store.address();
    StoreWorker first(store.address()), second(store.address());
    cold = first.server.Generate(LongRequest());
    ASSERT_TRUE(cold.status.ok()) << cold.status.error_message();
    EXPECT_EQ(cold.started.cached_tokens(), 0u);
    EXPECT_EQ(cold.published.published_tokens(), 96u) << cold.published.note();
    EXPECT_EQ(cold.published.durable(), v1::DURABILITY_DISK);
    ExpectSame(first.server.Generate(LongRequest()), cold, 96, v1::TIER_HOST);
    ExpectSame(second.server.Generate(LongRequest()), cold, 96, v1::TIER_HOST);
  }
  StoreServer again(options);
  StoreWorker third(again.address());
  ExpectSame(third.server.Generate(LongRequest()), cold, 96, v1::TIER_DISK);
  EXPECT_EQ(third.counters.Read().fetches.at("hit"), 1u);
}

// A worker must not get restore points that were published with other weights, other arithmetic, or
// another type of keys and values. It gets the reason.
TEST(WorkerAndStore, PrefixOfOtherWeightsIsMiss) {
  const PrefixRequest prefix = [] {
    PrefixRequest made;
    for (const uint32_t id : CountingTokens(100)) made.token_ids.push_back(id);
    made.tenant = "default";
    return made;
  }();
  WorkerServer::Options stored;
  stored.engine.exactness = ExactnessChoice::kInvariant;
  stored.engine.arithmetic = ArithmeticChoice::kFloat32;
  WorkerServer::Options blocks = stored;
  blocks.engine.weights = WeightsChoice::kQ8_0;
  WorkerServer::Options integers = blocks;
  integers.engine.arithmetic = ArithmeticChoice::kAuto;
  using Fields = std::vector<std::string>;
  WorkerServer::Options floats = stored;
  floats.geometry.bfloat16 = true;
  WorkerServer::Options tensor_cores = floats;
  tensor_cores.engine.arithmetic = ArithmeticChoice::kBFloat16;
  const auto cases = {std::tuple(stored, blocks, Fields{"weights"}),
                      {floats, tensor_cores, Fields{"arithmetic"}},
                      {tensor_cores, floats, Fields{"arithmetic"}},
                      {blocks, stored, Fields{"weights"}},
                      {blocks, integers, Fields{"arithmetic", "kv_dtype"}}};
  for (const auto& [publishes, reads, fields] : cases) {
    StoreServer store(StoreServer::SmallStore(""));
    StoreWorker publisher(store.address(), publishes), reader(store.address(), reads);
    const Generation published = publisher.server.Generate(LongRequest());
    ASSERT_GT(published.published.published_tokens(), 0u);
    v1::GenerateRequest request = LongRequest();
    request.set_cache(v1::CACHE_MODE_READ);
    const Generation read = reader.server.Generate(request);
    ASSERT_TRUE(read.status.ok()) << read.status.error_message();
    EXPECT_EQ(read.started.cached_tokens(), 0u);
    EXPECT_NE(read.finished.first_logits_sha256(), published.finished.first_logits_sha256());
    EXPECT_GT(publisher.server.Generate(request).started.cached_tokens(), 0u);
    absl::Notification explained;
    reader.cache->Explain(prefix, absl::InfiniteFuture(),
                          [&](absl::Status status, const v1::ExplainResponse& response) {
                            EXPECT_TRUE(status.ok()) << status;
                            EXPECT_EQ(response.usable_tokens(), 0u);
                            Fields differ;
                            for (const auto& other : response.other_fingerprints()) {
                              differ.push_back(other.field());
                            }
                            EXPECT_EQ(differ, fields) << response.summary();
                            explained.Notify();
                          });
    explained.WaitForNotification();
  }
}

// Exactness class invariant: a chat of three turns, as token ids. Each turn is computed by another
// worker with another number of threads; the last turn is restored from disk after a restart.
TEST(WorkerAndStore, AnswersAreRestoredNextTurn) {
  const TestFolder folder;
  const StoreOptions options = StoreServer::SmallStore(folder.path());
  auto store = std::make_unique<StoreServer>(options);
  std::vector<uint32_t> ids = CountingTokens(37);
  uint32_t known = 0;
  for (int turn = 0; turn < 3; ++turn) {
    if (turn == 2) {
      store.reset();
      store = std::make_unique<StoreServer>(options);
    }
    WorkerServer::Options invariant;
    invariant.engine.exactness = ExactnessChoice::kInvariant;
    invariant.engine.threads = 1 + turn;
    StoreWorker worker(store->address(), invariant);
    v1::GenerateRequest request = IdsRequest(ids, 21);
    request.set_cache(v1::CACHE_MODE_OFF);
    const Generation cold = worker.server.Generate(request);
    request.set_cache(v1::CACHE_MODE_DEFAULT);
    request.set_wait_published(true);
    const Generation warm = worker.server.Generate(request);
    const v1::Tier tiers[] = {v1::TIER_NONE, v1::TIER_HOST, v1::TIER_DISK};
    ExpectSame(warm, cold, known, tiers[turn]);
    known = static_cast<uint32_t>(ids.size() + warm.ids.size()) - 1;
    EXPECT_EQ(warm.published.published_tokens(), known) << warm.published.note();
    ids.insert(ids.end(), warm.ids.begin(), warm.ids.end());
    ids.push_back(5);
  }
}

TEST(WorkerAndStore, EveryPublishedPointIsRestored) {
  StoreServer store(StoreServer::SmallStore(""));
  StoreWorker publisher(store.address()), reader(store.address());
  ASSERT_TRUE(publisher.server.Generate(LongRequest()).status.ok());
  for (uint32_t boundary : {53u, 96u}) {
    // Each prompt ends with other tokens, so that `boundary` is its longest restore point.
    std::vector<uint32_t> ids = CountingTokens(boundary);
    ids.push_back(3);
    ids.push_back(4);
    v1::GenerateRequest request = IdsRequest(ids, 4);
    request.mutable_prompt()->add_breakpoints(53);
    request.set_cache(v1::CACHE_MODE_OFF);
    const Generation cold = reader.server.Generate(request);
    request.set_cache(v1::CACHE_MODE_READ);
    ExpectSame(reader.server.Generate(request), cold, boundary, v1::TIER_HOST);
  }
}

TEST(WorkerAndStore, LostStoreRecomputesThenRecovers) {
  const TestFolder folder;
  const StoreOptions options = StoreServer::SmallStore(folder.path());
  auto store = std::make_unique<StoreServer>(options);
  const std::string address = store->address();
  StoreWorker worker(address);
  const Generation cold = worker.server.Generate(LongRequest());
  store.reset();
  const Generation alone = worker.server.Generate(LongRequest());
  ExpectSame(alone, cold, 0, v1::TIER_NONE);
  EXPECT_EQ(alone.published.published_tokens(), 0u);
  // The fetch fails as "unreachable", or on a busy machine as "deadline".
  uint64_t failed = 0;
  for (const auto& [outcome, count] : worker.counters.Read().fetches) {
    failed += outcome == "miss" ? 0 : count;
  }
  EXPECT_GE(failed, 1u);
  store = std::make_unique<StoreServer>(options, address);
  const absl::Time patience = absl::Now() + absl::Minutes(10);
  Generation back;
  do {
    ASSERT_LT(absl::Now(), patience) << "did not recover by itself";
    back = worker.server.Generate(LongRequest());
  } while (back.started.cached_tokens() == 0);
  ExpectSame(back, cold, 96, v1::TIER_DISK);
}

TEST(WorkerAndStore, EmbeddedStoreGivesSameLogits) {
  EmbeddedWorker embedded;
  WorkerServer& worker = embedded.server;
  const Generation cold = worker.Generate(LongRequest());
  EXPECT_EQ(cold.published.published_tokens(), 96u) << cold.published.note();
  ExpectSame(worker.Generate(LongRequest()), cold, 96, v1::TIER_HOST);
  EXPECT_EQ(embedded.link->counters()->Read().fetches.at("hit"), 1u);
  EXPECT_GT(embedded.link->counters()->Read().bytes_fetched, 0u);
}

// A prefix that the store has copied to the worker's device is restored from there, with its
// remainder, which the worker needs to continue the chunk.
TEST(WorkerAndStore, DeviceTierGivesSameLogits) {
  StoreOptions options = StoreServer::SmallStore("");
  options.shared_memory = true;
  options.device = std::make_shared<FakeDevice>(64 << 20);
  StoreServer store(options, "127.0.0.1:0", absl::StrCat("@hearth-worker-store-", getpid()));
  store.WaitForMemory();
  StoreWorker with_device(store.address(), {}, FakeDevice::Import);
  WorkerServer& worker = with_device.server;
  const auto until_copied = [&](const v1::GenerateRequest& request) {
    Generation warm;
    do warm = worker.Generate(request);
    while (warm.started.source_tier() == v1::TIER_HOST);
    return warm;
  };
  const Generation cold = worker.Generate(LongRequest());
  EXPECT_EQ(cold.published.published_tokens(), 96u) << cold.published.note();
  const Generation warm = until_copied(LongRequest());
  ExpectSame(warm, cold, 96, v1::TIER_GPU);
  EXPECT_EQ(warm.published.published_tokens(), 96u) << warm.published.note();

  std::vector<uint32_t> ids = CountingTokens(53);
  for (uint32_t i = 0; i < 50; ++i) ids.push_back(3 + i % 7);
  v1::GenerateRequest request = IdsRequest(ids, 4);
  request.mutable_prompt()->add_breakpoints(53);
  request.set_wait_published(true);
  request.set_cache(v1::CACHE_MODE_OFF);
  const Generation other_cold = worker.Generate(request);
  request.set_cache(v1::CACHE_MODE_READ);
  ExpectSame(until_copied(request), other_cold, 53, v1::TIER_GPU);
  request.set_cache(v1::CACHE_MODE_DEFAULT);
  const Generation published = worker.Generate(request);
  ExpectSame(published, other_cold, 53, v1::TIER_GPU);
  EXPECT_EQ(published.published.published_tokens(), 96u) << published.published.note();
  // The new restore point has the remainder from the device, with the same bytes as if computed.
  ExpectSame(worker.Generate(request), other_cold, 96, v1::TIER_HOST);
  const StoreStats stats = store.store()->Stats();
  EXPECT_EQ(stats.counters.at("nondeterminism"), 0u);
  EXPECT_GE(stats.tiers.back().hit_tokens, 96u + 53 + 53);
}

// The time to live in the Prefill request must reach the store.
TEST(WorkerAndStore, PrefillTtlReachesStore) {
  StoreServer store(StoreServer::SmallStore(""));
  StoreWorker worker(store.address());
  for (const uint32_t ttl_s : {1000u, 0u}) {
    v1::PrefillRequest request;
    request.mutable_prompt()->mutable_token_ids()->add_ids(ttl_s == 0 ? 5 : 6);
    for (const uint32_t id : CountingTokens(40)) {
      request.mutable_prompt()->mutable_token_ids()->add_ids(id);
    }
    request.set_ttl_s(ttl_s);
    v1::PrefillResponse response;
    const grpc::Status status = Prefill(worker.server.stub(), request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_GT(response.published().published_tokens(), 0u) << response.published().note();
  }
  size_t limited = 0, others = 0;
  for (const RestorePoint& point : store.store()->List("default")) {
    if (point.expires_in == absl::InfiniteDuration()) {
      ++others;
      continue;
    }
    ++limited;
    EXPECT_LE(point.expires_in, absl::Seconds(1000));
    EXPECT_GT(point.expires_in, absl::Seconds(700)) << "in seconds";
  }
  EXPECT_GT(limited, 0u);
  EXPECT_EQ(others, limited);
}

TEST(WorkerAndStore, RequestHintsReachStore) {
  StoreServer store(StoreServer::SmallStore(""));
  StoreWorker worker(store.address());
  v1::GenerateRequest request = LongRequest();
  request.set_wait_published(true);
  request.set_keep_s(kMaxKeepSeconds + 1);
  request.set_priority(-kMaxPriority - 1);
  const Generation generated = worker.server.Generate(request);
  ASSERT_GT(generated.published.published_tokens(), 0u) << generated.published.note();
  v1::PrefillRequest prefill;
  for (const uint32_t id : CountingTokens(40, 9)) {
    prefill.mutable_prompt()->mutable_token_ids()->add_ids(id);
  }
  prefill.set_keep_s(900);
  prefill.set_priority(3);
  v1::PrefillResponse response;
  ASSERT_TRUE(Prefill(worker.server.stub(), prefill, &response).ok());
  size_t by_generate = 0, by_prefill = 0;
  for (const RestorePoint& point : store.store()->List("default")) {
    const bool was_prefill = point.priority == 3;
    (was_prefill ? by_prefill : by_generate) += 1;
    if (!was_prefill) {
      EXPECT_EQ(point.priority, -kMaxPriority);
    }
    const absl::Duration kept = absl::Seconds(was_prefill ? 900 : kMaxKeepSeconds);
    EXPECT_LE(point.kept, kept);
    EXPECT_GT(point.kept, kept / 2);
  }
  EXPECT_GT(by_generate, 0u);
  EXPECT_GT(by_prefill, 0u);
}

TEST(WorkerAndStore, ExplainReportsUsableTokens) {
  StoreServer store(StoreServer::SmallStore(""));
  StoreWorker worker(store.address());
  worker.server.Generate(LongRequest());
  absl::Notification done;
  PrefixRequest prefix;
  prefix.token_ids = CountingTokens(100);
  prefix.cuts = {53};
  prefix.tenant = "default";
  worker.cache->Explain(prefix, absl::InfiniteFuture(),
                        [&](absl::Status status, const auto& report) {
                          EXPECT_TRUE(status.ok()) << status;
                          EXPECT_EQ(report.usable_tokens(), 96u) << report.summary();
                          done.Notify();
                        });
  done.WaitForNotification();
}

}  // namespace
}  // namespace hearth
