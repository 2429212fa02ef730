// Objects that a cache only lends: copied once, straight into the KV cache, and believed only when
// the loan held until the copy was over.

#include <atomic>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The fate of the memory that a test's cache lends.
struct Lender {
  int answers_held = 1 << 20;  // Holds() says so this often; before the next its memory is used
  bool denies = false;         // uses the memory all the same, and says that it holds
  std::atomic<int> asked{0}, open{0};
};

class FakeLoan final : public Loan {
 public:
  explicit FakeLoan(Lender* lender) : lender_(lender) { ++lender_->open; }
  ~FakeLoan() override { --lender_->open; }

  bool Holds() const override {
    const bool holds = ++lender_->asked <= lender_->answers_held;
    if (lender_->asked >= lender_->answers_held) Reuse();  // right after this copy
    return holds || lender_->denies;
  }
  void Reuse() const {
    for (const auto& object : lent_) std::memset(object->bytes.get(), 0x5a, object->size_bytes);
  }
  // A copy of the object's slices, which is lent.
  std::vector<const std::byte*> Lend(const KvObject& object) {
    auto copy = std::make_shared<KvObject>(object);
    copy->bytes = AllocateAligned(object.size_bytes);
    std::memcpy(copy->bytes.get(), object.bytes.get(), object.size_bytes);
    lent_.push_back(copy);
    std::vector<const std::byte*> slices;
    const size_t slice_bytes = object.size_bytes / object.slice_digests.size();
    for (size_t i = 0; i < object.slice_digests.size(); ++i) {
      slices.push_back(copy->bytes.get() + i * slice_bytes);
    }
    return slices;
  }

 private:
  Lender* const lender_;
  std::vector<std::shared_ptr<KvObject>> lent_;
};

// Lends every whole chunk of what `cache` answers.
void LendAll(MemoryPrefixCache* cache, Lender* lender, uint32_t chunk_tokens) {
  cache->mangle = [lender, chunk_tokens](FetchOutcome* outcome) {
    if (outcome->usable_tokens == 0) return;
    const auto loan = std::make_shared<FakeLoan>(lender);
    for (auto& object : outcome->objects) {
      if (object->id.tokens != chunk_tokens) continue;
      auto lent = std::make_shared<KvObject>(*object);
      lent->lent_slices = loan->Lend(*object);
      lent->loan = loan;
      lent->bytes = nullptr;
      object = std::move(lent);
    }
    if (lender->answers_held == 0) loan->Reuse();
  };
}

class EngineLentTest : public testing::TestWithParam<NamedGeometry> {
 protected:
  EngineLentTest() {
    filler_ = std::make_unique<TestWorker>(Dir(), Options(0));
    filler_->Run(Request(Prompt(75), {23, 50}));
    LendAll(filler_->cache().get(), &lender_, (*filler_)->layout().chunk_tokens);
  }
  static const std::string& Dir() { return ModelDir(GetParam().geometry); }
  static EngineOptions Options(uint64_t pool_bytes) {
    EngineOptions options = TestWorker::SmallOptions();
    options.dtype = GetParam().dtype;
    options.memory.pool_bytes = pool_bytes;
    return options;
  }
  std::unique_ptr<TestWorker> Worker(uint64_t pool_bytes = kPoolBytes) {
    return std::make_unique<TestWorker>(Dir(), Options(pool_bytes), filler_->cache());
  }
  // Of the filler's prompt up to `boundary`, then its own.
  static EngineRequest Asking(uint32_t boundary, uint64_t seed = 7) {
    return Request(ForkedPrompt(boundary, 90, 1, seed), {23, 50});
  }
  void ExpectRight(const EngineRequest& request, const Collector& run) {
    ASSERT_TRUE(run.error.ok()) << run.error;
    EngineRequest cold = request;
    cold.cache = CacheMode::kOff;
    const auto computed = filler_->Run(cold);
    EXPECT_EQ(run.finished.first_logits_sha256, computed->finished.first_logits_sha256);
    EXPECT_EQ(run.tokens, computed->tokens);
    EXPECT_EQ(filler_->cache()->conflicts(), 0);
    EXPECT_EQ(lender_.open, 0) << "a loan is given back by the end of its request";
  }

  Lender lender_;
  std::unique_ptr<TestWorker> filler_;
};

TEST_P(EngineLentTest, ServesAlikeAndIsTheWorkersOwnAfterwards) {
  const auto worker = Worker();
  for (uint32_t boundary : {23u, 50u, 64u}) {
    SCOPED_TRACE(boundary);
    const EngineRequest request = Asking(boundary, 7 + boundary);
    const auto run = worker->Run(request);
    EXPECT_EQ(run->started.cached_tokens, boundary);
    EXPECT_EQ(run->started.source_tier, Tier::kHost);
    EXPECT_THAT(run->outcome.boundaries, Contains(80)) << run->outcome.note;
    ExpectRight(request, *run);
    EngineRequest again = Asking(boundary, 70 + boundary);
    again.cache = CacheMode::kRead;
    const auto pooled = worker->Run(again);
    EXPECT_EQ(pooled->started.cached_tokens, boundary);
    EXPECT_EQ(pooled->started.source_tier, Tier::kWorker);
    ExpectRight(again, *pooled);
  }
  EXPECT_EQ(worker->Counter("restore_failures"), 0u);
  EXPECT_EQ(worker->Counter("lent_not_kept"), 0u);
}

TEST_P(EngineLentTest, AWorkerWithoutAPoolPublishesWhatGoesOnFromIt) {
  const auto worker = Worker(0);
  const EngineRequest request = Asking(64);
  const auto run = worker->Run(request);
  EXPECT_EQ(run->started.cached_tokens, 64u);
  EXPECT_THAT(run->outcome.boundaries, Contains(80)) << run->outcome.note;
  ExpectRight(request, *run);
  EngineRequest read = Asking(50, 3);
  read.cache = CacheMode::kRead;
  ExpectRight(read, *worker->Run(read));
}

TEST_P(EngineLentTest, APromptThatIsAllThereIsServedAndGivesItsLoanBack) {
  const auto worker = Worker();
  EngineRequest request = Request(Prompt(64), {23, 50}, 0);
  const auto run = worker->Run(request);
  ASSERT_TRUE(run->error.ok()) << run->error;
  EXPECT_EQ(run->started.cached_tokens, 64u);
  EXPECT_EQ(run->outcome.published_tokens, 64u) << run->outcome.note;
  EXPECT_EQ(lender_.open, 0);
}

TEST_P(EngineLentTest, MemoryReusedBeforeItsRestoreIsComputed) {
  lender_.answers_held = 0;
  const auto worker = Worker();
  const EngineRequest request = Asking(64);
  const auto run = worker->Run(request);
  EXPECT_EQ(run->started.cached_tokens, 0u);
  EXPECT_EQ(run->started.source_tier, Tier::kNone);
  EXPECT_EQ(worker->Counter("restore_failures"), 1u);
  ExpectRight(request, *run);
}

TEST_P(EngineLentTest, ThenThePoolsShorterPointServes) {
  lender_.answers_held = 0;
  const auto worker = Worker();
  worker->Run(Request(Prompt(40), {23}));  // computed: the pool's now, up to 32
  const EngineRequest request = Asking(64);
  const auto run = worker->Run(request);
  EXPECT_EQ(run->started.cached_tokens, 32u);
  EXPECT_EQ(run->started.source_tier, Tier::kWorker);
  EXPECT_EQ(worker->Counter("restore_failures"), 2u);
  ExpectRight(request, *run);
}

TEST_P(EngineLentTest, MemoryReusedBeforeItIsKeptIsNotKept) {
  lender_.answers_held = 1;  // the restore's
  const auto worker = Worker();
  const EngineRequest request = Asking(64);
  const auto run = worker->Run(request);
  EXPECT_EQ(run->started.cached_tokens, 64u);
  EXPECT_EQ(worker->Counter("lent_not_kept"), 1u);
  EXPECT_EQ(worker->Counter("lent_changed"), 0u);
  EXPECT_EQ(worker->Counter("pool_inserts"), 0u);
  // The computed part is published: the store has the rest.
  EXPECT_THAT(run->outcome.boundaries, Contains(80)) << run->outcome.note;
  ExpectRight(request, *run);
}

// A store that writes into what it lends, or RAM that does not keep its bits: perhaps before the
// restore.
TEST_P(EngineLentTest, RunThatMayHaveRestoredOtherBytesKeepsNothing) {
  lender_.answers_held = 1;
  lender_.denies = true;
  const auto worker = Worker();
  const auto run = worker->Run(Asking(64));
  ASSERT_TRUE(run->error.ok()) << run->error;
  EXPECT_EQ(worker->Counter("lent_changed"), 1u);
  EXPECT_EQ(worker->Counter("pool_inserts"), 0u);
  EXPECT_EQ(worker->Counter("publishes"), 0u);
  EXPECT_THAT(run->outcome.boundaries, IsEmpty());
  EXPECT_THAT(run->outcome.note, HasSubstr("changed while it was lent"));
  EXPECT_EQ(lender_.open, 0);
}

TEST_P(EngineLentTest, PrefixTooLargeForThePoolIsNotCopied) {
  const auto worker = Worker(1);
  const EngineRequest request = Asking(64);
  const auto run = worker->Run(request);
  EXPECT_EQ(run->started.cached_tokens, 64u);
  EXPECT_EQ(lender_.asked, 1) << "for the restore alone";
  EXPECT_EQ(worker->Counter("lent_not_kept"), 0u);
  ExpectRight(request, *run);
}

// Notes what was still lent when the engine asked whose turn it is to compute.
class TurnNotingCache final : public MemoryPrefixCache {
 public:
  TurnNotingCache(const KvLayout& layout, Lender* lender)
      : MemoryPrefixCache(layout), lender_(lender) {}
  LeaseOutcome Lease(const PrefixRequest&, uint32_t above_tokens, uint32_t, const LeaseTerms&,
                     absl::Time) override {
    open_at_turn = lender_->open;
    above_at_turn = above_tokens;
    return {};
  }
  int open_at_turn = -1;
  uint32_t above_at_turn = 0;

 private:
  Lender* const lender_;
};

TEST_P(EngineLentTest, BeforeAWaitItIsCopied) {
  for (const bool too_late : {false, true}) {
    SCOPED_TRACE(too_late);
    lender_.answers_held = 1 << 20;
    EngineOptions options = Options(kPoolBytes);
    options.cache.compute.min_tokens = 1;
    const auto cache = std::make_shared<TurnNotingCache>((*filler_)->layout(), &lender_);
    TestWorker(Dir(), Options(0), cache).Run(Request(Prompt(75), {23, 50}));
    LendAll(cache.get(), &lender_, (*filler_)->layout().chunk_tokens);
    if (too_late) lender_.answers_held = 0;
    lender_.asked = 0;
    TestWorker worker(Dir(), options, cache);
    const EngineRequest request = Asking(64);
    const auto run = worker.Run(request);
    EXPECT_EQ(cache->open_at_turn, 0);
    EXPECT_EQ(cache->above_at_turn, too_late ? 0u : 64u);
    EXPECT_EQ(run->started.cached_tokens, too_late ? 0u : 64u);
    EXPECT_EQ(worker.Counter("restore_failures"), too_late ? 1u : 0u);
    ExpectRight(request, *run);
  }
}

TEST_P(EngineLentTest, ALoanWithoutAllItsSlicesIsRefused) {
  const auto lend = filler_->cache()->mangle;
  filler_->cache()->mangle = [lend](FetchOutcome* outcome) {
    lend(outcome);
    for (auto& object : outcome->objects) {
      if (object->loan == nullptr) continue;
      auto torn = std::make_shared<KvObject>(*object);
      torn->lent_slices.pop_back();
      object = std::move(torn);
    }
  };
  const auto worker = Worker();
  const EngineRequest request = Asking(64);
  const auto run = worker->Run(request);
  EXPECT_EQ(run->started.cached_tokens, 0u);
  EXPECT_EQ(worker->Counter("fetches_refused"), 1u);
  ExpectRight(request, *run);
}

INSTANTIATE_TEST_SUITE_P(Geometries, EngineLentTest, testing::ValuesIn(Geometries()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth
