// The engine's choice between loading and computing: both give the same bits, and each decision is
// reported and counted.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

const std::string& LoadDir() { return ModelDir(Geometries()[1].geometry); }

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Reports the prefixes of MemoryPrefixCache as offers of `bytes` bytes over the network.
class PricedCache final : public MemoryPrefixCache {
 public:
  using MemoryPrefixCache::MemoryPrefixCache;

  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Duration timeout) override {
    const bool is_first = first_most > 0 && above_tokens == 0;
    FetchOutcome outcome =
        MemoryPrefixCache::Fetch(prefix, above_tokens, is_first ? first_most : max_tokens, timeout);
    LoadReport& load = outcome.load;
    load.plan_took = absl::ZeroDuration();
    load.decision = LoadDecision::kMiss;
    if (outcome.usable_tokens == 0) return outcome;
    load.source = LoadSource::kWire;
    load.boundary = outcome.usable_tokens;
    load.bytes = is_first ? first_bytes : bytes;
    prefix.load->Decide(prefix.work, &load);
    load.took = absl::Milliseconds(1);
    judged.push_back(load);
    if (load.decision == LoadDecision::kLoad && !cuts_off) return outcome;
    FetchOutcome declined;
    declined.matched_tokens = cuts_off ? 0 : outcome.matched_tokens;
    declined.declined_tokens = outcome.usable_tokens;
    declined.load = load;
    if (cuts_off) declined.load.decision = LoadDecision::kAbandoned;
    declined.load.is_late = cuts_off;
    return declined;
  }

  LeaseOutcome Lease(const PrefixRequest&, uint32_t, uint32_t, const LeaseTerms&,
                     absl::Duration) override {
    ++leases;
    LeaseOutcome outcome;
    outcome.usable_tokens = 64;  // the abandoned load's tokens are stored
    return outcome;
  }

  uint64_t bytes = 1;
  uint32_t first_most = 0;  // if > 0, limits the boundary of a request's first fetch
  uint64_t first_bytes = 1;
  std::vector<LoadReport> judged;  // reports of all fetches
  bool cuts_off = false;
  int leases = 0;
};

// The clock advances by 1 ms at each call, so that measured durations do not depend on the machine.
EngineOptions Choosing(LoadChoice load, Exactness exactness) {
  EngineOptions options =
      exactness == Exactness::kInvariant ? InvariantOptions() : TestWorker::SmallOptions();
  options.memory.pool_bytes = 0;
  options.cache.load = load;
  options.cache.load_clock = [looks = std::make_shared<std::atomic<int64_t>>(0)] {
    return absl::FromUnixMillis(++*looks);
  };
  return options;
}

// The first load has 1 byte, the second 2^40 bytes.
TEST(EngineLoadTest, ExpensivePrefixIsComputedInstead) {
  for (const Exactness exactness : {Exactness::kExact, Exactness::kInvariant}) {
    SCOPED_TRACE(ExactnessName(exactness));
    const EngineOptions options = Choosing(LoadChoice::kAuto, exactness);
    TestWorker cold(LoadDir(), options, nullptr, false);
    const auto cache = std::make_shared<PricedCache>(cold->layout());
    TestWorker worker(LoadDir(), options, cache);
    const EngineRequest request = Request(Prompt(75), {50});
    EngineRequest off = request;
    off.cache = CacheMode::kOff;
    const auto expected = cold.Run(off);
    EXPECT_EQ(worker.Run(request)->started.load.decision, LoadDecision::kMiss);
    const auto loaded = worker.Run(request);
    EXPECT_EQ(loaded->started.load.decision, LoadDecision::kLoad);
    EXPECT_GT(loaded->started.cached_tokens, 0u);
    cache->bytes = uint64_t{1} << 40;
    const auto computed = worker.Run(request);
    EXPECT_EQ(computed->started.load.decision, LoadDecision::kCompute);
    EXPECT_EQ(computed->started.cached_tokens, 0u);
    EXPECT_TRUE(computed->started.load.load_estimate.has_value());
    EXPECT_TRUE(computed->started.load.compute_estimate.has_value());
    for (const auto* run : {loaded.get(), computed.get()}) {
      EXPECT_EQ(run->finished.first_logits_sha256, expected->finished.first_logits_sha256);
      EXPECT_EQ(run->tokens, expected->tokens);
    }
    EXPECT_EQ(worker.Counter("loads"), 1u);
    EXPECT_EQ(worker.Counter("loads_declined"), 1u);
    const LoadReport foreseen = worker->EstimateLoad(64);
    EXPECT_TRUE(foreseen.load_estimate.has_value() && foreseen.compute_estimate.has_value());
    EXPECT_NE(foreseen.decision, LoadDecision::kNone);
    EXPECT_EQ(cache->conflicts(), 0);
  }
}

TEST(EngineLoadTest, ShortPromptTakesNoLease) {
  EngineOptions options = Choosing(LoadChoice::kAlways, Exactness::kInvariant);
  options.cache.compute.min_tokens = UINT32_MAX;
  const auto cache = std::make_shared<PricedCache>(TestWorker(LoadDir(), options)->layout());
  TestWorker worker(LoadDir(), options, cache);
  worker.Run(Request(Prompt(75), {50}));
  EXPECT_GT(worker.Run(Request(Prompt(120)))->started.cached_tokens, 0u);
  EXPECT_EQ(cache->leases, 0);
}

TEST(EngineLoadTest, AbandonedLoadIsNotRetried) {
  EngineOptions options = Choosing(LoadChoice::kAuto, Exactness::kInvariant);
  options.cache.compute.min_tokens = 1;
  TestWorker first(LoadDir(), options);
  const auto cache = std::make_shared<PricedCache>(first->layout());
  TestWorker worker(LoadDir(), options, cache);
  const EngineRequest request = Request(Prompt(75), {50});
  worker.Run(request);
  const int asked = cache->fetches(), leases = cache->leases;
  const uint64_t misses = worker.Counter("fetch_misses");
  cache->cuts_off = true;
  const auto run = worker.Run(request);
  EXPECT_EQ(run->started.load.decision, LoadDecision::kAbandoned);
  EXPECT_EQ(run->started.cached_tokens, 0u);
  EXPECT_EQ(cache->fetches(), asked + 1);
  EXPECT_EQ(cache->leases, leases) << "over a slow link, the request must not call the store again";
  EXPECT_EQ(worker.Counter("loads_abandoned"), 1u);
  EXPECT_EQ(worker.Counter("fetch_misses"), misses);
}

// After it waited for another request's computation, the request fetches again and gets only an
// expensive offer. Its first load has 1 byte, at a speed measured with 1 MiB.
TEST(EngineLoadTest, ExpensiveSecondFetchKeepsFirstReport) {
  EngineOptions options = Choosing(LoadChoice::kAuto, Exactness::kInvariant);
  options.cache.compute.min_tokens = 1;
  TestWorker first(LoadDir(), options);
  const auto cache = std::make_shared<PricedCache>(first->layout());
  TestWorker worker(LoadDir(), options, cache);
  const EngineRequest request = Request(Prompt(75), {20, 50});
  cache->bytes = kMiB;
  for (int run = 0; run < 2; ++run) worker.Run(request);  // measure computing, then a load of 1 MiB
  cache->first_most = 20;
  cache->bytes = uint64_t{1} << 40;
  const int asked = cache->fetches();
  const uint64_t loads = worker.Counter("loads");
  const auto run = worker.Run(request);
  EXPECT_EQ(cache->fetches(), asked + 2);
  EXPECT_EQ(run->started.cached_tokens, 20u);
  EXPECT_EQ(run->started.load.decision, LoadDecision::kLoad);
  EXPECT_EQ(run->started.load.boundary, 20u);
  EXPECT_EQ(run->started.load.bytes, 1u);
  EXPECT_EQ(worker.Counter("loads"), loads + 1);
  EXPECT_EQ(worker.Counter("loads_declined"), 0u);
}

// The declined tokens must be computed too, so a longer load saves more computing.
TEST(EngineLoadTest, DeclinedTokensCountAsMissing) {
  EngineOptions options = Choosing(LoadChoice::kAuto, Exactness::kInvariant);
  options.cache.compute.min_tokens = 1;
  TestWorker first(LoadDir(), options);
  const auto cache = std::make_shared<PricedCache>(first->layout());
  TestWorker worker(LoadDir(), options, cache);
  const EngineRequest request = Request(Prompt(75), {50});
  cache->bytes = kMiB;
  for (int run = 0; run < 2; ++run) worker.Run(request);  // measure computing, then a load of 1 MiB
  cache->first_most = 50;
  cache->first_bytes = cache->bytes = uint64_t{1} << 40;
  cache->judged.clear();
  const auto run = worker.Run(request);
  EXPECT_EQ(run->started.load.decision, LoadDecision::kCompute);
  ASSERT_EQ(cache->judged.size(), 2u);
  EXPECT_EQ(cache->judged[0].boundary, 50u);
  EXPECT_EQ(cache->judged[1].boundary, 64u);
  EXPECT_GE(*cache->judged[1].compute_estimate, *cache->judged[0].compute_estimate);
}

TEST(EngineLoadTest, LoadAlwaysIgnoresCost) {
  const EngineOptions options = Choosing(LoadChoice::kAlways, Exactness::kExact);
  TestWorker first(LoadDir(), options);
  const auto cache = std::make_shared<PricedCache>(first->layout());
  TestWorker worker(LoadDir(), options, cache);
  cache->bytes = uint64_t{1} << 40;
  for (int run = 0; run < 3; ++run) worker.Run(Request(Prompt(75), {50}));
  EXPECT_EQ(worker.Counter("loads"), 2u);
}

TEST(EngineLoadTest, LoadNeverStillPublishes) {
  const EngineOptions options = Choosing(LoadChoice::kNever, Exactness::kExact);
  TestWorker worker(LoadDir(), options);
  worker.Run(Request(Prompt(75), {50}));
  EXPECT_FALSE(worker.cache()->BoundariesOf("default").empty());
  const auto again = worker.Run(Request(Prompt(75), {50}));
  EXPECT_EQ(again->started.cached_tokens, 0u);
  EXPECT_EQ(again->started.load.decision, LoadDecision::kNone);
  EXPECT_EQ(worker.cache()->fetches(), 0);
}

}  // namespace
}  // namespace hearth
