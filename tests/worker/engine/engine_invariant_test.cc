// The engine in class invariant, on the CPU kernels: a request's results depend only on its tokens.

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/restore_rule.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

EngineOptions Invariant(int threads = 2) { return InvariantOptions(threads); }

class EngineInvariantTest : public testing::TestWithParam<NamedGeometry> {
 protected:
  const std::string& Dir() const { return ModelDir(GetParam().geometry); }
};

std::vector<NamedGeometry> FloatGeometries() {
  std::vector<NamedGeometry> geometries = Geometries();
  geometries.pop_back();  // remove the bfloat16 shape
  return geometries;
}

TEST_P(EngineInvariantTest, CachedRunEqualsUncachedRun) {
  const std::vector<int32_t> prompt = Prompt(150);
  TestWorker alone(Dir(), Invariant(1), nullptr, /*with_cache=*/false);
  const auto cold = alone.Run(Request(prompt, {}, 9));
  ASSERT_TRUE(cold->error.ok()) << cold->error;
  TestWorker publisher(Dir(), Invariant(3));
  // Prompts with different breakpoints and different continuations.
  for (const uint32_t shared : {7u, 16u, 45u, 46u, 100u}) {
    publisher.Run(Request(ForkedPrompt(shared, shared + 30, 1, 70 + shared), {shared}));
    EngineOptions options = Invariant(2);
    options.memory.pool_bytes = 0;
    TestWorker worker(Dir(), options, publisher.cache());
    const auto warm = worker.Run(Request(prompt, {static_cast<uint32_t>(140)}, 9));
    ASSERT_TRUE(warm->error.ok()) << warm->error;
    EXPECT_GE(warm->started.cached_tokens, shared);
    EXPECT_EQ(warm->finished.first_logits_sha256, cold->finished.first_logits_sha256) << shared;
    EXPECT_EQ(warm->tokens, cold->tokens);
  }
  EXPECT_EQ(publisher.cache()->conflicts(), 0);
}

TEST_P(EngineInvariantTest, PoolHitSharesBlocks) {
  TestWorker worker(Dir(), Invariant(), nullptr, /*with_cache=*/false);
  const auto cold = worker.Run(Request(Prompt(100), {93}));
  const uint64_t kept = SettledKvBytes(&worker, {93, 101});
  EXPECT_GT(kept, 0u);
  // The request shares chunks 0 to 4 of its 101 tokens with the pool, and allocates chunks 5 and 6.
  uint64_t while_running = 0;
  Collector warm_run;
  warm_run.on_token = [&](size_t) {
    while_running = std::max(while_running, worker->Stats().kv_used_bytes);
    return true;
  };
  EngineRequest reads = Request(Prompt(100), {}, 5);
  reads.cache = CacheMode::kRead;
  worker.Submit(reads, &warm_run);
  warm_run.WaitEnd();
  EXPECT_EQ(warm_run.started.source_tier, Tier::kWorker);
  EXPECT_GE(warm_run.started.cached_tokens, 93u);
  EXPECT_GT(while_running, kept);
  EXPECT_LE(while_running, kept + 2 * ChunkBytes(worker->layout()));
  EXPECT_EQ(SettledKvBytes(&worker, {93, 101}), kept);
  const auto warm = worker.Run(Request(Prompt(100)));
  EXPECT_EQ(warm->started.source_tier, Tier::kWorker);
  EXPECT_GE(warm->started.cached_tokens, 93u);
  EXPECT_EQ(warm->finished.first_logits_sha256, cold->finished.first_logits_sha256);
  EXPECT_EQ(worker.Counter("nondeterminism"), 0u);
}

TEST_P(EngineInvariantTest, ConcurrentRequestsKeepTheirTokens) {
  TestWorker alone(Dir(), Invariant(), nullptr, /*with_cache=*/false);
  std::vector<std::unique_ptr<Collector>> wanted;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    wanted.push_back(alone.Run(Request(Prompt(20 + 17 * seed, seed), {}, 12)));
  }
  TestWorker worker(Dir(), Invariant());
  std::vector<std::unique_ptr<Collector>> together;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    together.push_back(std::make_unique<Collector>());
    worker.Submit(Request(Prompt(20 + 17 * seed, seed), {}, 12), together.back().get());
  }
  for (size_t i = 0; i < together.size(); ++i) {
    together[i]->WaitAll();
    ASSERT_TRUE(together[i]->error.ok()) << together[i]->error;
    EXPECT_EQ(together[i]->tokens, wanted[i]->tokens);
    EXPECT_EQ(together[i]->finished.first_logits_sha256, wanted[i]->finished.first_logits_sha256);
  }
}

// Two workers run the turns of a chat alternately. Neither recomputes the other's answers.
TEST_P(EngineInvariantTest, RestoredAnswerEqualsPrefill) {
  TestWorker one(Dir(), Invariant(1));
  EngineOptions no_pool = Invariant(3);
  no_pool.memory.pool_bytes = 0;
  TestWorker two(Dir(), no_pool, one.cache());
  TestWorker alone(Dir(), Invariant(2), nullptr, /*with_cache=*/false);
  std::vector<int32_t> text = Prompt(20);
  uint32_t known = 0;
  for (uint32_t turn = 0; turn < 6; ++turn) {
    const EngineRequest request = Request(text, {}, 9 + 7 * turn);
    const auto warm = (turn % 2 == 0 ? one : two).Run(request);
    ASSERT_TRUE(warm->error.ok()) << warm->error;
    EXPECT_GE(warm->started.cached_tokens, known) << turn;
    EngineRequest again = request;
    again.cache = CacheMode::kOff;
    const auto cold = alone.Run(again);
    EXPECT_EQ(warm->finished.first_logits_sha256, cold->finished.first_logits_sha256) << turn;
    EXPECT_EQ(warm->tokens, cold->tokens) << turn;
    known = static_cast<uint32_t>(text.size() + warm->tokens.size()) - 1;
    EXPECT_EQ(warm->outcome.published_tokens, known);
    EXPECT_EQ(warm->outcome.boundaries.back(), known);
    text.insert(text.end(), warm->tokens.begin(), warm->tokens.end());
    const std::vector<int32_t> next = Prompt(11, 40 + turn);
    text.insert(text.end(), next.begin(), next.end());
  }
  // A worker that does not read the cache computes the same bits for the same text.
  EngineRequest prefill = Request(text, {known}, 0);
  prefill.cache = CacheMode::kWrite;
  TestWorker fresh(Dir(), Invariant(2), one.cache());
  EXPECT_TRUE(fresh.Run(prefill)->error.ok());
  EXPECT_EQ(one.cache()->conflicts(), 0);
}

// A new breakpoint at the end of a chunk is stored, because its objects are complete. Other new
// breakpoints inside the restored prefix are not stored.
TEST_P(EngineInvariantTest, NewBreakpointIsStoredAtChunkEnd) {
  TestWorker worker(Dir(), Invariant());
  worker.Run(Request(Prompt(70), {70}, 0));
  EngineRequest request = Request(Prompt(75), {64, 67, 70}, 2);
  request.asked = request.breakpoints;
  const auto warm = worker.Run(request);
  ASSERT_TRUE(warm->error.ok()) << warm->error;
  EXPECT_EQ(warm->started.cached_tokens, 70u);
  EXPECT_EQ(warm->finished.computed_tokens, 5u);
  EXPECT_THAT(warm->outcome.boundaries, ::testing::IsSupersetOf({64u, 70u}));
  EXPECT_THAT(warm->outcome.boundaries, ::testing::Not(::testing::Contains(67u)));
  EXPECT_THAT(warm->outcome.note,
              ::testing::HasSubstr("boundary 67 was not stored: compute it with Prefill"));
  EXPECT_EQ(worker.cache()->conflicts(), 0);
}

TEST_P(EngineInvariantTest, StoppedAnswerIsPublished) {
  TestWorker worker(Dir(), Invariant());
  const auto all = worker.Run(Request(Prompt(30), {}, 12));
  for (const size_t last : {0u, 5u}) {
    TestWorker other(Dir(), Invariant());
    Collector stopped;
    stopped.on_token = [&](size_t number) { return number < last; };
    other.Submit(Request(Prompt(30), {}, 12), &stopped);
    stopped.WaitAll();
    EXPECT_EQ(stopped.finished.reason, FinishReason::kStop);
    EXPECT_EQ(stopped.outcome.published_tokens, 30 + last);
  }
  EngineOptions options = Invariant();
  EngineRequest reads = Request(Prompt(30), {}, 12);
  reads.cache = CacheMode::kRead;
  TestWorker reader(Dir(), options);
  reader.Run(reads);
  EXPECT_THAT(reader.cache()->BoundariesOf("default"), testing::IsEmpty());
}

// Always grants a lease, as if other requests waited.
class LeasingCache : public MemoryPrefixCache {
 public:
  using MemoryPrefixCache::MemoryPrefixCache;
  LeaseOutcome Lease(const PrefixRequest&, uint32_t, uint32_t, const LeaseTerms&,
                     absl::Duration) override {
    LeaseOutcome outcome;
    outcome.lease = std::make_shared<ComputeLease>();
    return outcome;
  }
};

// Publishes boundaries inside a step, and the last boundary before the end of the prompt.
TEST_P(EngineInvariantTest, LeaseHolderPublishesEachBoundary) {
  EngineOptions options = Invariant();
  options.cache.compute.min_tokens = 1;
  TinyGeometry geometry = GetParam().geometry;
  geometry.context_tokens = 1024;
  geometry.seed = 77;
  const std::string& dir = ModelDir(geometry);
  TestWorker plain(dir, options, nullptr, /*with_cache=*/false);
  const auto cold = plain.Run(Request(Prompt(600, 1), {}, 5));
  auto cache = std::make_shared<LeasingCache>(plain->layout());
  TestWorker holder(dir, options, cache);
  const auto run = holder.Run(Request(Prompt(600, 1), {23, 45, 550}, 5));
  ASSERT_TRUE(run->error.ok()) << run->error;
  holder->Drain(absl::InfiniteFuture());
  EXPECT_THAT(cache->BoundariesOf("default"), testing::IsSupersetOf({23u, 45u, 550u, 604u}));
  EXPECT_EQ(run->finished.first_logits_sha256, cold->finished.first_logits_sha256);
  EXPECT_EQ(cache->conflicts(), 0);
}

// Two equal fetches run. The first fills the pool. The second brings nothing new, which must not
// count as an error.
TEST_P(EngineInvariantTest, ConcurrentEqualFetchesAreAccepted) {
  TestWorker publisher(Dir(), Invariant());
  publisher.Run(Request(Prompt(60), {48}, 1));
  publisher->Drain(absl::InfiniteFuture());
  absl::Notification both_fetch;
  std::atomic<int> fetches{0};
  publisher.cache()->before_fetch = [&] {
    if (++fetches == 2) both_fetch.Notify();
    both_fetch.WaitForNotification();
  };
  EngineOptions options = Invariant();
  options.memory.pool_bytes = kPoolBytes;
  TestWorker worker(Dir(), options, publisher.cache());
  Collector first, second;
  for (Collector* collector : {&first, &second}) {
    EngineRequest reads = Request(Prompt(60));
    reads.cache = CacheMode::kRead;
    worker.Submit(reads, collector);
  }
  for (Collector* collector : {&first, &second}) {
    collector->WaitEnd();
    EXPECT_TRUE(collector->error.ok()) << collector->error;
    EXPECT_GE(collector->started.cached_tokens, 48u);
  }
  EXPECT_EQ(worker.Counter("fetches_refused"), 0u);
}

// A prefill recomputes decoded tokens with the same bits, so an audit detects one wrong bit.
TEST_P(EngineInvariantTest, AuditComparesDecodedBits) {
  TestWorker publisher(Dir(), Invariant());
  std::vector<int32_t> text = Prompt(40);
  const auto first = publisher.Run(Request(text, {}, 30));
  text.insert(text.end(), first->tokens.begin(), first->tokens.end());
  text.push_back(7);
  EngineOptions options = Invariant();
  options.cache.audit_rate = 1;
  options.memory.pool_bytes = 0;
  const auto audit = [&](uint64_t wrong) {
    TestWorker worker(Dir(), options, publisher.cache());
    EngineRequest reads = Request(text);
    reads.cache = CacheMode::kRead;
    EXPECT_EQ(worker.Run(reads)->started.cached_tokens, 69u);
    while (worker.Counter("audits") + worker.Counter("audits_skipped") < 1 ||
           worker.Counter("audits_quarantined") < wrong) {
      std::this_thread::yield();
    }
    EXPECT_EQ(worker.Counter("audits"), 1u);
    EXPECT_EQ(worker.Counter("audits_wrong"), wrong);
  };
  audit(0);
  EXPECT_THAT(publisher.cache()->quarantined(), testing::IsEmpty());
  PrefixRequest answered;
  answered.token_ids.assign(text.begin(), text.begin() + 69);
  answered.tenant = "default";
  const ObjectId decoded{48, 16, LayerGroup::kGlobal};  // has decoded tokens only
  publisher.cache()->Poison(answered, decoded);
  audit(1);
  EXPECT_THAT(publisher.cache()->quarantined(), testing::ElementsAre(decoded));
}

INSTANTIATE_TEST_SUITE_P(Geometries, EngineInvariantTest, testing::ValuesIn(FloatGeometries()),
                         [](const auto& info) { return std::string(info.param.name); });

const std::string& OneDir() { return ModelDir(Geometries()[0].geometry); }

TEST(InvariantClassTest, FingerprintOmitsTheMachine) {
  TestWorker one(OneDir(), Invariant(1)), three(OneDir(), Invariant(3));
  EXPECT_TRUE(Compare(one->fingerprint(), three->fingerprint()).empty());
  std::string version;
  for (const FingerprintField& field : one->fingerprint().fields()) {
    if (field.name == "compute_version") version = field.ValueText();
    for (const char* machine : {"cpu_capability", "threads", "canary_sha256", "device_kind"}) {
      EXPECT_NE(field.name, machine);
    }
  }
  EXPECT_EQ(version, "hearth kernels 1, splits of 16");
  EXPECT_EQ(one->fingerprint().Layout()->exactness, Exactness::kInvariant);
  EXPECT_EQ(one->why_not_invariant(), "");
  TestWorker exact(OneDir());
  std::vector<std::string> fields;
  for (const FieldDifference& d : Compare(exact->fingerprint(), one->fingerprint())) {
    fields.push_back(d.field);
  }
  EXPECT_THAT(fields, testing::Contains("exactness"));
  EXPECT_EQ(exact->why_not_invariant(), "--exactness exact was given");
}

TEST(InvariantClassTest, Bfloat16DtypeIsRefused) {
  EngineOptions options = Invariant();
  options.model_dir = OneDir();
  EXPECT_TRUE(options.Validate().ok());
  options.dtype = "bfloat16";
  EXPECT_THAT(std::string(options.Validate().message()), HasSubstr("got dtype bfloat16"));
}

TEST(InvariantClassTest, UnservableRequestEvictsNothing) {
  uint64_t needed = 0;  // bytes that a request of 64 tokens needs
  {
    TestWorker worker(OneDir(), Invariant(), nullptr, /*with_cache=*/false);
    worker.Run(Request(Prompt(64), {}, 1));
    needed = worker->Stats().kv_used_bytes;  // bytes that the pool holds
  }
  EngineOptions options = Invariant();
  options.memory.kv_bytes = 3 * needed;
  TestWorker worker(OneDir(), options, nullptr, /*with_cache=*/false);
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const auto run = worker.Run(Request(Prompt(64, seed), {}, 1));
    EXPECT_TRUE(run->error.ok()) << run->error;
    EXPECT_LE(worker->Stats().kv_used_bytes, options.memory.kv_bytes);
  }
  const uint64_t pooled = worker->Stats().pool_bytes;
  const auto refused = worker.Run(Request(Prompt(500), {}, 1));
  EXPECT_EQ(refused->error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused->error.message()),
              testing::AllOf(HasSubstr("kv-bytes: 501 tokens may need "),
                             HasSubstr(absl::StrCat("limit is ", options.memory.kv_bytes)),
                             HasSubstr("max_new_tokens"), HasSubstr("raise --kv-bytes")));
  EXPECT_EQ(worker->Stats().pool_bytes, pooled) << "a refused request must not evict from the pool";
  EXPECT_TRUE(worker.Run(Request(Prompt(64, 9), {}, 1))->error.ok());
}

// The restored prefix is in the pool already. It counts only once against the budget.
TEST(InvariantClassTest, NextTurnReusesPoolInSmallBudget) {
  TinyGeometry geometry = Geometries()[0].geometry;
  geometry.layer_types = "gggl";
  geometry.seed = 78;
  const std::string& dir = ModelDir(geometry);
  const std::vector<int32_t> text = Prompt(206);
  EngineOptions options = Invariant();
  const uint64_t chunk = ChunkBytes(TestWorker(dir, options, nullptr, false)->layout());
  options.memory.kv_bytes = chunk * (208 / 16) * 3 / 2;
  TestWorker worker(dir, options, nullptr, /*with_cache=*/false);
  worker.Run(Request({text.begin(), text.begin() + 190}, {}, 1));
  const auto next = worker.Run(Request(text, {}, 2));
  ASSERT_TRUE(next->error.ok()) << next->error;
  EXPECT_EQ(next->started.source_tier, Tier::kWorker);
  EXPECT_GE(next->started.cached_tokens, 176u);
}

// The fetch of one audit returns while another audit is running.
TEST(InvariantClassTest, RequestAbortsRunningAudit) {
  TinyGeometry geometry = Geometries()[0].geometry;
  geometry.layer_types = "gg";
  geometry.seed = 79;
  const std::string& dir = ModelDir(geometry);
  TestWorker publisher(dir, Invariant());
  for (const uint64_t seed : {1, 2}) publisher.Run(Request(Prompt(100, seed)));
  publisher->Drain(absl::InfiniteFuture());
  EngineOptions options = Invariant();
  options.cache.audit_rate = 1;
  options.memory.pool_bytes = 0;
  // Enough memory for an audit (six computed and six fetched chunks), but not for six chunks and a
  // request of seven.
  options.memory.kv_bytes = 12 * ChunkBytes(publisher->layout());
  absl::Notification asked, answered;
  int fetches = 0;
  absl::Mutex mu;
  std::function<void()> meanwhile;
  publisher.cache()->before_fetch = [&] {
    int fetch = 0;
    {
      absl::MutexLock lock(&mu);
      fetch = ++fetches;
    }
    if (fetch == 4) meanwhile();
    if (fetch != 2) return;
    asked.Notify();
    answered.WaitForNotification();
  };
  TestWorker worker(dir, options, publisher.cache());
  // The fetches of all audits run on one thread, so the fetch of the first audit has returned. Two
  // requests make the engine run rounds in which the second audit could use its result by mistake.
  meanwhile = [&] {
    EngineRequest uncached = Request(Prompt(5), {}, 1);
    uncached.cache = CacheMode::kOff;
    for (int i = 0; i < 2; ++i) worker.Run(uncached);
  };
  EngineRequest request = Request(Prompt(100));
  request.cache = CacheMode::kRead;
  EXPECT_EQ(worker.Run(request)->started.cached_tokens, 96u);
  asked.WaitForNotification();
  request.token_ids = Prompt(100, 2);
  const auto run = worker.Run(request);
  answered.Notify();
  ASSERT_TRUE(run->error.ok()) << run->error;
  while (worker.Counter("audits") + worker.Counter("audits_skipped") < 2) {
    std::this_thread::yield();
  }
  EXPECT_EQ(worker.Counter("audits_skipped"), 1u);
  EXPECT_EQ(worker.Counter("audits"), 1u);
  EXPECT_EQ(worker.Counter("audits_wrong"), 0u);
}

TEST(InvariantClassTest, BudgetBelowOneChunkIsRefused) {
  EngineOptions options = Invariant();
  options.model_dir = OneDir();
  const uint64_t chunk = ChunkBytes(TestWorker(OneDir(), options, nullptr, false)->layout());
  options.memory.kv_bytes = chunk - 1;
  const absl::Status refused = Engine::Create(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(absl::StrCat("got ", chunk - 1, ": raise --kv-bytes")));
  options.memory.kv_bytes = chunk;
  EXPECT_TRUE(Engine::Create(options).ok());
}

}  // namespace
}  // namespace hearth
