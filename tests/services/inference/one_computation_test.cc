// If several workers miss the same prefix at the same time, one of them computes it, and all
// answers are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "services/inference/remote_prefix_cache.h"
#include "tests/services/inference/worker_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

constexpr uint32_t kPromptTokens = 100;  // tokens of the prompt; its restore point has 96 of them
constexpr uint32_t kRestTokens = 4;
constexpr absl::Duration kPatience = absl::Minutes(10);  // a test waits longer only if it fails

// Start: delays every computation until `expected` requests have asked the store who computes.
class Start {
 public:
  explicit Start(int expected) : missing_(expected) {}
  void Asked() {
    absl::MutexLock lock(&mu_);
    --missing_;
  }
  void WaitForAll() {
    absl::MutexLock lock(&mu_);
    held_ = true;
    const auto all = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return missing_ <= 0; };
    // The timeout is reached only in a broken test: requests do not share the computation, and the
    // test fails.
    mu_.AwaitWithTimeout(absl::Condition(&all), kPatience);
  }
  void WaitForAHolder() {
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&held_), kPatience);
  }

 private:
  absl::Mutex mu_;
  int missing_ ABSL_GUARDED_BY(mu_);
  bool held_ ABSL_GUARDED_BY(mu_) = false;
};

// The cache of a worker that waits for Start. Its publishes can be disabled.
class StartingCache final : public PrefixCache {
 public:
  StartingCache(std::unique_ptr<PrefixCache> cache, Start* start, bool publishes)
      : cache_(std::move(cache)), start_(start), publishes_(publishes) {}
  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Duration timeout) override {
    return cache_->Fetch(prefix, above_tokens, max_tokens, timeout);
  }
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Duration timeout) override {
    start_->Asked();
    LeaseOutcome outcome = cache_->Lease(prefix, above_tokens, max_tokens, terms, timeout);
    // this request holds the lease, so it computes
    if (outcome.lease != nullptr) start_->WaitForAll();
    return outcome;
  }
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) override {
    if (!publishes_) return {};
    return cache_->Publish(spec, timeout);
  }
  void CancelCalls() override { cache_->CancelCalls(); }

 private:
  const std::unique_ptr<PrefixCache> cache_;
  Start* const start_;
  const bool publishes_;
};

WorkerServer::Options Sharing(uint64_t pool_bytes = 0) {
  WorkerServer::Options options;
  options.engine.memory.pool_bytes = pool_bytes;
  options.engine.cache.compute.min_tokens = 16;
  options.engine.cache.compute.wait = kPatience;
  options.engine.cache.compute.lease = kPatience;
  return options;
}

struct Worker {
  Worker(const std::string& address, Start* start, bool publishes = true, uint64_t pool_bytes = 0)
      : server(Sharing(pool_bytes)) {
    cache = std::make_unique<StartingCache>(
        std::make_unique<RemotePrefixCache>(ConnectedTo(address), server.engine()->fingerprint(),
                                            server.engine()->layout(), &counters),
        start, publishes);
    server.SetCache(cache.get());
  }
  CacheCounters counters;
  std::unique_ptr<PrefixCache> cache;  // destroyed after the engine
  WorkerServer server;
};

// Sends `request` to all servers at the same time. Returns the number of computed tokens of each
// request, ascending.
std::vector<uint32_t> GenerateTogether(const std::vector<WorkerServer*>& servers,
                                       const v1::GenerateRequest& request) {
  std::vector<Generation> answers(servers.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < servers.size(); ++i) {
    clients.emplace_back([&, i] { answers[i] = servers[i]->Generate(request); });
  }
  for (std::thread& client : clients) client.join();
  std::vector<uint32_t> computed;
  for (const Generation& answer : answers) {
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.finished.first_logits_sha256(), answers[0].finished.first_logits_sha256());
    EXPECT_EQ(answer.ids, answers[0].ids);
    computed.push_back(kPromptTokens - answer.started.cached_tokens());
  }
  std::sort(computed.begin(), computed.end());
  return computed;
}

TEST(OneComputation, EightMissesComputeOnce) {
  StoreServer store(StoreServer::SmallStore(""));
  Start start(8);
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<WorkerServer*> servers;
  for (int i = 0; i < 8; ++i) {
    workers.push_back(std::make_unique<Worker>(store.address(), &start));
    servers.push_back(&workers.back()->server);
  }
  std::vector<uint32_t> expected(7, kRestTokens);
  expected.push_back(kPromptTokens);
  EXPECT_EQ(GenerateTogether(servers, IdsRequest(CountingTokens(kPromptTokens), 4)), expected);
  const auto counters = store.store()->Stats().counters;
  EXPECT_EQ(counters.at("leases_granted"), 1u);
  EXPECT_EQ(counters.at("published_restore_points"), 1u);
  EXPECT_EQ(counters.at("nondeterminism"), 0u);
}

TEST(OneComputation, BreakpointIsPublishedBeforePromptEnd) {
  // The lease covers the boundaries 53 and 96. The boundary 53 is published when it is computed,
  // and once more with 96.
  StoreServer store(StoreServer::SmallStore(""));
  Start start(1);
  Worker worker(store.address(), &start);
  v1::GenerateRequest request = IdsRequest(CountingTokens(kPromptTokens), 4);
  request.mutable_prompt()->add_breakpoints(53);
  request.set_wait_published(true);
  const Generation answer = worker.server.Generate(request);
  EXPECT_EQ(answer.published.published_tokens(), 96u) << answer.published.note();
  worker.server.engine()->Drain(absl::Now() + kPatience);
  const auto counters = store.store()->Stats().counters;
  EXPECT_EQ(counters.at("publishes"), 2u);
  EXPECT_EQ(counters.at("published_restore_points"), 2u);
}

TEST(OneComputation, FailedPublishLetsOtherWorkerCompute) {
  StoreServer store(StoreServer::SmallStore(""));
  Start start(4);  // waits for three requests and for the watcher
  Worker failing(store.address(), &start, /*publishes=*/false);
  Worker second(store.address(), &start), third(store.address(), &start);
  // The worker that fails to publish gets the lease, because it asks before the others start.
  std::vector<uint32_t> computed;
  std::thread first([&] {
    EXPECT_EQ(failing.server.Generate(IdsRequest(CountingTokens(kPromptTokens), 4))
                  .started.cached_tokens(),
              0u);
  });
  start.WaitForAHolder();
  // If a request asked only after the holder had given up, it would get the lease as the first, and
  // not take it over.
  std::thread watcher([&] {
    const absl::Time patience = absl::Now() + kPatience;
    while (store.store()->Stats().counters.at("lease_waits") < 2 && absl::Now() < patience)
      std::this_thread::yield();
    start.Asked();
  });
  computed = GenerateTogether({&second.server, &third.server},
                              IdsRequest(CountingTokens(kPromptTokens), 4));
  first.join();
  watcher.join();
  EXPECT_EQ(computed, (std::vector<uint32_t>{kRestTokens, kPromptTokens}));
  EXPECT_EQ(store.store()->Stats().counters.at("lease_takeovers"), 1u);
}

TEST(OneComputation, SecondRequestUsesWorkersPool) {
  StoreServer store(StoreServer::SmallStore(""));
  Start start(2);
  Worker worker(store.address(), &start, true, /*pool_bytes=*/64 << 20);
  EXPECT_EQ(GenerateTogether({&worker.server, &worker.server},
                             IdsRequest(CountingTokens(kPromptTokens), 4)),
            (std::vector<uint32_t>{kRestTokens, kPromptTokens}));
  EXPECT_EQ(worker.counters.Read().bytes_fetched, 0u) << "no need to carry it";
}

}  // namespace
}  // namespace hearth
