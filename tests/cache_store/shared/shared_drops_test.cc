// Drops of restore points and of all entries: during loads, writes and starts, and of pinned
// points.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "cache_store/store/calls/store.h"
#include "tests/cache_store/shared/shared_kit.h"
#include "tests/cache_store/store/store_start_kit.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using SharedDropsTest = SharedStoreTest;

// Data that a lookup has read before a drop must not enter the store after the drop.
TEST_F(SharedDropsTest, DropAllDuringOwnLoadCausesMiss) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  bool done = false;
  other.engine->OnGet([&](int n) {
    if (n < 1 || done) return;
    done = true;
    ASSERT_TRUE(other.store->DropAll("default", true).ok());
  });
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0u) << "during";
  EXPECT_TRUE(done);
  other.writes->RunAll();
  kit_.clock.Advance(absl::Hours(1));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0u) << "an hour after the drop was acknowledged here";
  other.writes->RunAll();
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0u) << "and again";
}

TEST_F(SharedDropsTest, RemoteDropAllDuringLoadCausesMiss) {
  kit_.shared_options.generation_age = absl::Milliseconds(1);
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  bool done = false;
  other.engine->OnGet([&](int n) {
    if (n < 1 || done) return;
    done = true;
    ASSERT_TRUE(one.store->DropAll("default", true).ok());
    kit_.clock.Advance(absl::Milliseconds(2));
    Fetch(&other, Prompt(2));  // the store notices the drop
  });
  Fetch(&other, Prompt(1));
  other.engine->OnGet(nullptr);
  for (int i = 0; i < 3; ++i) {
    kit_.clock.Advance(absl::Hours(1));
    Fetch(&other, Prompt(1));
    other.writes->RunAll();
  }
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0u) << "hours after every store heard of the drop";
}

TEST_F(SharedDropsTest, PinnedPointsRefuseDropAll) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  const auto point = one.store->List("default")[0];
  ASSERT_TRUE(one.store->SetPinned(point.id, "default", true).ok());
  const absl::Status refused = one.store->DropAll("default", false).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("1 restore points are pinned in this store: " +
                              DigestHex(point.id).substr(0, 16)),
                    HasSubstr("other stores")));
  EXPECT_EQ(one.store->List("default").size(), 2u) << "and nothing was dropped";
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  // Only this store's pins count: the points pinned in the other store are dropped.
  ASSERT_TRUE(other.store->DropAll("default", false).ok());
  kit_.clock.Advance(2 * kit_.shared_options.generation_age);
  EXPECT_EQ(Fetch(&one, Prompt(1)) + Fetch(&one, Prompt(2)), 0u);
  EXPECT_TRUE(one.store->List("default").empty());
}

TEST_F(SharedDropsTest, ForcedDropAllRemovesPinnedPoints) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  for (SharedNode* node : {&one, &other}) {
    const auto point = node->store->List("default")[0];
    ASSERT_TRUE(node->store->SetPinned(point.id, "default", true).ok());
    node->writes->RunAll();
  }
  kit_.clock.Advance(absl::Seconds(2));
  ASSERT_TRUE(one.store->DropAll("default", true).ok());
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0u);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0u);
  EXPECT_TRUE(other.store->List("default").empty());
  // A drop is applied only once: restore points that are pinned later stay.
  Publish(&other, Prompt(1), {64});
  ASSERT_TRUE(other.store->SetPinned(other.store->List("default")[0].id, "default", true).ok());
  kit_.clock.Advance(absl::Seconds(2));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  EXPECT_EQ(other.store->List("default").size(), 1u);
}

TEST_F(SharedDropsTest, ForcedDropErasesPointFromEngine) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  const Digest id = one.store->List("default").at(0).id;
  for (SharedNode* node : {&one, &other}) {
    ASSERT_TRUE(node->store->SetPinned(id, "default", true).ok());
  }
  EXPECT_EQ(one.store->Drop(id, "default", false)->kept_pinned, 1u);
  EXPECT_TRUE(IsRestorable(Prompt(1), 64));
  EXPECT_EQ(one.store->Drop(id, "default", true)->dropped, 1u);
  EXPECT_FALSE(IsRestorable(Prompt(1), 64));
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0u);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  other.writes->RunAll();
  EXPECT_FALSE(IsRestorable(Prompt(1), 64)) << "a use writes nothing there";
}

// A publish that began before a drop is refused, in the store that drops and in a store that
// notices the drop.
TEST_F(SharedDropsTest, DropAllCancelsActivePublish) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(2), {64});
  for (SharedNode* node : {&one, &other}) {
    const PublishSpec spec = KitSpec(model_, Prompt(1), {64});
    auto session = node->store->Publish(spec);
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(KitPutAll(session->get(), spec, model_, Prompt(1)).ok());
    ASSERT_TRUE(one.store->DropAll("default", false).ok());
    kit_.clock.Advance(2 * kit_.shared_options.generation_age);
    Fetch(node, Prompt(2));
    const auto result = (*session)->Commit();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->boundaries.empty());
    EXPECT_EQ(Fetch(node, Prompt(1)), 0u);
  }
}

TEST_F(SharedDropsTest, ExplainNamesDropAllAsReason) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  kit_.clock.Advance(absl::Minutes(3) + absl::Milliseconds(1));
  const auto report = one.store->Explain(KitQuery(model_, Prompt(1)));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->boundaries.at(0).reason,
            "never stored after all entries of the tenant were dropped 3m ago");
}

TEST_F(SharedDropsTest, DropRemovesPointBeingWrittenToEngine) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  const auto result = KitPublish(one.store.get(), model_, Prompt(1), {64});
  ASSERT_TRUE(result.ok());
  const auto point = one.store->List("default")[0];
  int n = 0;
  one.engine->OnWritten([&] {
    // The first write is the generation, the second the parts, the third the heads.
    if (++n != 2) return;
    const auto d = one.store->Drop(point.id, "default", true);
    ASSERT_TRUE(d.ok()) << d.status();
    EXPECT_EQ(d->dropped, 1u);
  });
  one.writes->RunAll();
  EXPECT_GE(n, 2);
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0u);
}

TEST_F(SharedDropsTest, DropErasesLateWrites) {
  SharedNode one = kit_.Node();
  // The drop happens during the writes, or before them. The values that were sent last arrive late.
  for (const bool is_begun : {true, false}) {
    ASSERT_TRUE(KitPublish(one.store.get(), model_, Prompt(1), {64}).ok());
    const auto drop = [&] {
      const auto point = one.store->List("default")[0];
      EXPECT_EQ(one.store->Drop(point.id, "default", false)->dropped, 1u);
    };
    int n = 0;
    one.engine->OnWritten([&] {
      if (++n != (is_begun ? 2 : 1)) return;
      if (is_begun) drop();
      one.engine->SetLate(true);
    });
    one.writes->RunAll();
    one.engine->OnWritten(nullptr);
    EXPECT_GE(n, 1);
    if (!is_begun) drop();
    one.engine->SetLate(false);
    one.engine->ArriveLate();
    EXPECT_EQ(Fetch(&one, Prompt(1)), 0u) << is_begun;
    kit_.clock.Advance(absl::Seconds(2));
  }
}

TEST_F(SharedDropsTest, DropAllAppliesWhenEngineAnswersLate) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  ASSERT_TRUE(KitPublish(other.store.get(), model_, Prompt(2), {64}).ok());
  ASSERT_TRUE(one.store->DropAll("default", true).ok());
  kit_.clock.Advance(absl::Seconds(2));
  other.engine->SetDelay(2 * SharedLookup::kDropCheckWait);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u) << "it does not know";
  other.waits->RunAll();  // the check for drops does not wait for queued writes
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0u);
}

// After a lookup has measured the engine's delay, local hits wait for the engine's answer.
TEST_F(SharedDropsTest, LocalHitsWaitForSlowEngine) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&other, Prompt(1), {64});
  other.engine->SetDelay(3 * SharedLookup::kDropCheckWait);
  kit_.clock.Advance(absl::Seconds(2));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  other.waits->RunAll();
  ASSERT_TRUE(one.store->DropAll("default", true).ok());
  kit_.clock.Advance(absl::Milliseconds(1001));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0u);
}

TEST_F(SharedDropsTest, DropAllCheckBypassesQueuedWrites) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64u);
  other.writes->RunAll();
  KitPrompt theirs = Prompt(9);
  theirs.tenant = "another";
  for (uint64_t s = 20; s < 60; ++s) {
    theirs.tokens = KitTokens(s, 65);
    ASSERT_TRUE(KitPublish(other.store.get(), model_, theirs, {64}).ok());
  }
  ASSERT_TRUE(one.store->DropAll("default", true).ok());
  int served = 0;
  for (int s = 0; s < 30; ++s) {
    kit_.clock.Advance(absl::Seconds(1));
    served += Fetch(&other, Prompt(1)) > 0;
    if (s == 29) other.writes->RunAll();
  }
  EXPECT_LE(served, 1) << "seconds";
}

// Fixture: a store that starts with local entries, and shares an engine with another store.
class StartDropsTest : public StoreStart {
 protected:
  void SetUp() override {
    secret_ = ReadOrMakeSecret(file_).value();
    StoreOptions options = Options();
    options.secret_file = file_;
    store_ = TieredStore::Open(options).value();
    for (uint64_t p = 0; p < kPrompts; ++p) ASSERT_TRUE(Publish(p).ok());
    store_.reset();
  }
  // Drops all entries in the other store.
  void DropThere() {
    StoreOptions options;
    options.secret_file = file_;
    ManualExecutor* executor = nullptr;
    SharedStore::Seams seams;
    seams.clock = &clock_;
    SharedStore theirs(OpenStore(options, SteppedSeams(&executor, &clock_)).value(),
                       std::make_unique<FakeSharedEngine>(&memory_, &clock_), secret_,
                       SharedOptions(), std::move(seams));
    ASSERT_TRUE(theirs.DropAll("default", false).ok());
    clock_.Advance(absl::Minutes(1));
  }
  void Start() {
    shared_.reset();
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    StoreOptions options = Options();
    options.secret_file = file_;
    auto behind = OpenStore(options, std::move(seams)).value();
    stepped_ = static_cast<Store*>(behind.get());
    auto writes = std::make_unique<ManualExecutor>();
    writes_ = writes.get();
    auto engine = std::make_unique<FakeSharedEngine>(&memory_, &clock_);
    engine_ = engine.get();
    shared_ = std::make_unique<SharedStore>(std::move(behind), std::move(engine), secret_,
                                            SharedOptions(),
                                            SharedStore::Seams{&clock_, nullptr, std::move(writes),
                                                               std::make_unique<ManualExecutor>()});
  }
  // Returns the number of prompts that are hits.
  uint32_t Served() {
    uint32_t served = 0;
    for (uint64_t p = 0; p < kPrompts; ++p) {
      served += KitFetch(shared_.get(), model_, Prompt(p)).value() > 0;
    }
    return served;
  }

  const TestFolder secrets_;
  const std::string file_ = secrets_.path() + "/secret";
  std::string secret_;
  FakeSharedMemory memory_;
  Store* stepped_ = nullptr;
  ManualExecutor* writes_ = nullptr;
  FakeSharedEngine* engine_ = nullptr;
  std::unique_ptr<SharedStore> shared_;
};

TEST_F(StartDropsTest, StartAppliesDropAllMissedWhileDown) {
  Start();
  const std::vector<RestorePoint> points = shared_->List("default");
  EXPECT_EQ(Served(), kPrompts);
  shared_.reset();
  DropThere();
  Start();
  EXPECT_EQ(Served(), 0u);
  EXPECT_TRUE(absl::IsNotFound(shared_->FetchById(points[0].id, "default").status()));
  PrefixQuery again = KitQuery(model_, Prompt(5));
  again.again = true;
  EXPECT_EQ(shared_->Fetch(again, 0, 0).value()->plan().usable_tokens, 0u);
  EXPECT_EQ(shared_->Claim(KitQuery(model_, Prompt(5)), ClaimRequest())->usable_tokens, 0u);
  EXPECT_EQ(shared_->Explain(KitQuery(model_, Prompt(5)))->usable_tokens, 0u);
  PrefixQuery theirs = KitQuery(model_, Prompt(5));
  theirs.public_tenant = std::exchange(theirs.tenant, "another");
  EXPECT_EQ(shared_->Fetch(theirs, 0, 0).value()->plan().usable_tokens, 0u);
  EXPECT_EQ(Served(), 0u);
  EXPECT_TRUE(shared_->List("default").empty());
  EXPECT_TRUE(KitPublish(shared_.get(), model_, Prompt(5), {kLast}).ok());
  EXPECT_EQ(KitFetch(shared_.get(), model_, Prompt(5)).value(), kLast);
}

TEST_F(StartDropsTest, ExplainAfterStartAppliesMissedDropAll) {
  PrefixQuery theirs = KitQuery(model_, Prompt(5));
  theirs.public_tenant = std::exchange(theirs.tenant, "another");
  DropThere();
  Start();
  EXPECT_EQ(Served(), 0u);
  EXPECT_EQ(shared_->Explain(theirs)->usable_tokens, 0u);
  EXPECT_EQ(shared_->Explain(KitQuery(model_, Prompt(5)))->usable_tokens, 0u);
}

TEST_F(StartDropsTest, DropAllSurvivesRestart) {
  Start();
  DropThere();
  EXPECT_EQ(Served(), 0u);
  ASSERT_TRUE(KitPublish(shared_.get(), model_, Prompt(5), {kLast}).ok());
  ASSERT_TRUE(shared_->Flush(absl::Now() + absl::Minutes(1)).ok());
  Start();
  engine_->SetUnreachable(true);
  EXPECT_EQ(Served(), 1u);
  // If the engine loses all values, the local entries stay.
  memory_.entries.clear();
  engine_->SetUnreachable(false);
  clock_.Advance(absl::Minutes(2));
  EXPECT_EQ(Served(), 1u);
}

TEST_F(StartDropsTest, DropAllIsNotRepeatedAfterRestart) {
  Start();
  EXPECT_EQ(Served(), kPrompts);
  DropThere();
  EXPECT_EQ(Served(), 0u);
  ASSERT_TRUE(KitPublish(shared_.get(), model_, Prompt(5), {kLast}).ok());
  ASSERT_TRUE(shared_->Flush(absl::Now() + absl::Minutes(1)).ok());
  for (int start = 0; start < 2; ++start) {
    Start();
    EXPECT_EQ(Served(), 1u) << start;
    EXPECT_EQ(Served(), 1u) << start;
  }
  // A drop by this store itself is not repeated either. If the engine lost the drop number, the
  // store writes it again.
  ASSERT_TRUE(shared_->DropAll("default", false).ok());
  ASSERT_TRUE(KitPublish(shared_.get(), model_, Prompt(6), {kLast}).ok());
  ASSERT_TRUE(shared_->Flush(absl::Now() + absl::Minutes(1)).ok());
  memory_.entries.clear();
  Start();
  EXPECT_EQ(Served(), 1u);
  EXPECT_EQ(memory_.entries.count(SharedSpace(secret_, "default", 0).NumbersName()), 1u);
  // A later drop by the other store is applied.
  DropThere();
  EXPECT_EQ(Served(), 0u);
}

}  // namespace
}  // namespace hearth
