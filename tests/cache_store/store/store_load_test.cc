// A store that serves while its index loads: finds what it would find later, changes nothing on the
// word of half an index, and loses nothing whenever it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "cache_store/disk/stored_records.h"
#include "cache_store/disk/verify.h"
#include "tests/cache_store/store/store_load_kit.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/raw_database.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST_F(StoreLoad, AnyPromptIsServedBeforeTheIndexIs) {
  Fill();
  OpenLoading();
  EXPECT_EQ(Counted("unloaded_restore_points"), kPrompts);
  // The oldest, which the loader comes to last.
  EXPECT_EQ(Fetch(0), kLast);
  EXPECT_GT(Counted("unloaded_restore_points"), kPrompts - 5) << "no more than it needs";
  KitPrompt unknown = Prompt(5);
  unknown.tokens.resize(kShared);
  unknown.tokens.resize(kShared + 20, 7);
  EXPECT_EQ(KitFetch(store_.get(), model_, unknown).value(), 0u) << "no tail at the branch";
  EXPECT_EQ(store_->Fetch(KitQuery(model_, unknown), 0, 0).value()->plan().matched_tokens, kShared);
  Digest id{};
  {
    // Before the id is loaded: of a prompt that nobody asked for yet.
    OpenWhole();
    id = store_->List("default").back().id;
    OpenLoading();
  }
  const auto by_id = store_->FetchById(id, "default");
  ASSERT_TRUE(by_id.ok()) << by_id.status();
  EXPECT_EQ((*by_id)->plan().usable_tokens, kLast);
  EXPECT_EQ(store_->FetchById(id, "other").status().code(), absl::StatusCode::kNotFound);
  ExpectAllThere();
  LoadAll();
  ExpectAllThere();
  EXPECT_EQ(store_->List("default").size(), kPrompts);
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u);
  EXPECT_EQ(Counted("recovery_collected_objects"), 0u);
}

TEST_F(StoreLoad, TheNewestComeFirstAndListAndExplainSayHowFarItIs) {
  Fill();
  OpenLoading();
  Step();
  const std::vector<RestorePoint> listed = store_->List("default");
  ASSERT_GT(listed.size(), 0u);
  ASSERT_LT(listed.size(), kPrompts);
  EXPECT_EQ(listed.size() + Counted("unloaded_restore_points"), kPrompts);
  // Those of the prompts that were published last.
  std::set<std::vector<uint32_t>> newest;
  for (uint64_t prompt = kPrompts - listed.size(); prompt < kPrompts; ++prompt) {
    const std::vector<uint32_t> tokens = Prompt(prompt).tokens;
    newest.emplace(tokens.begin() + kLast - 8, tokens.begin() + kLast);
  }
  for (const RestorePoint& point : listed) EXPECT_EQ(newest.count(point.last_token_ids), 1u);
  const PrefixQuery query = KitQuery(model_, Prompt(0));
  ExplainReport report = store_->Explain(query).value();
  EXPECT_EQ(report.usable_tokens, kLast) << "what it needs it loads";
  EXPECT_THAT(report.summary, HasSubstr("still loading"));
  LoadAll();
  report = store_->Explain(query).value();
  EXPECT_EQ(report.summary.find("still loading"), std::string::npos);
}

TEST_F(StoreLoad, AWatcherIsToldOfWhatIsLoadedAfterItsList) {
  Fill();
  OpenLoading();
  Step();
  absl::Mutex mutex;
  std::map<Digest, int> seen;
  const auto start = store_->Subscribe("default", {}, [&](const StoreEvent& event) {
    absl::MutexLock lock(&mutex);
    if (event.kind == StoreEvent::Kind::kStored) ++seen[event.restore_point.id];
  });
  {
    absl::MutexLock lock(&mutex);
    for (const RestorePoint& point : start.snapshot) ++seen[point.id];
  }
  LoadAll();
  absl::MutexLock lock(&mutex);
  const auto all = [&] { return seen.size() == kPrompts; };
  EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(30)));
  for (const auto& [id, times] : seen) EXPECT_EQ(times, 1);
}

TEST_F(StoreLoad, WhatChangesTheStoreWaits) {
  Fill();
  OpenLoading();
  ASSERT_EQ(Fetch(3), kLast);
  const Digest id = store_->List("default").at(0).id;
  const auto waits = [](const absl::Status& status, absl::StatusCode code) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("still loading"));
  };
  // The worker takes kUnavailable for a store that is gone.
  waits(Publish(kPrompts).status(), absl::StatusCode::kResourceExhausted);
  waits(store_->Drop(id, "default", true).status(), absl::StatusCode::kUnavailable);
  waits(store_->DropAll("default", true).status(), absl::StatusCode::kUnavailable);
  waits(store_->SetPinned(id, "default", true).status(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store()->ScrubStep(), absl::Seconds(1));
  EXPECT_EQ(Counted("scrubbed_objects"), 0u);
  LoadAll();
  ASSERT_TRUE(Publish(kPrompts).ok());
  ASSERT_TRUE(store_->SetPinned(id, "default", true).ok());
  executor_->RunAll();  // promotions hold what they read
  ASSERT_TRUE(store_->Drop(id, "default", true).ok());
  EXPECT_EQ(store_->List("default").size(), kPrompts);
  EXPECT_EQ(Fetch(3), 0u);
  EXPECT_EQ(Fetch(4), kLast);
}

// A publish that begins while the index loads is asked only for what the store lacks, and commits
// when the index is there.
TEST_F(StoreLoad, APublishUnderWaySharesWhatIsNotLoaded) {
  Fill();
  OpenLoading();
  KitPrompt prompt = Prompt(7);
  prompt.tokens.resize(kShared);
  for (const uint32_t token : KitTokens(777, 40)) prompt.tokens.push_back(token + 1);
  const PublishSpec spec = KitSpec(model_, prompt, {kLast});
  auto session = store_->Publish(spec).value();
  for (const uint32_t i : session->needed()) {
    const bool is_shared_global =
        spec.objects[i].id.group == LayerGroup::kGlobal && spec.objects[i].id.begin < kShared;
    EXPECT_FALSE(is_shared_global) << "it is on disk";
  }
  ASSERT_TRUE(KitPutAll(session.get(), spec, model_, prompt).ok());
  LoadAll();
  const auto result = session->Commit();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt).value(), kLast);
  session.reset();
  OpenWhole();
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt).value(), kLast);
  ExpectAllThere();
}

TEST_F(StoreLoad, EndingAtAnyStepLosesNothing) {
  Fill();
  for (int steps = 0; steps < 6; ++steps) {
    OpenLoading();
    for (uint64_t prompt = 0; prompt < kPrompts; prompt += 17) EXPECT_EQ(Fetch(prompt), kLast);
    for (int i = 0; i < steps; ++i) Step();
  }
  store_.reset();
  const VerifyReport report = VerifyDataDir(folder_.path()).value();
  EXPECT_TRUE(report.ok()) << report.problems[0];
  EXPECT_EQ(report.restore_points, kPrompts);
  EXPECT_EQ(report.unreferenced_objects, 0u);
  OpenWhole();
  ExpectAllThere();
}

// A rotten object removes every restore point that names it, loaded or not, and nothing else.
TEST_F(StoreLoad, QuarantineReachesWhatIsNotLoaded) {
  Fill();
  KitPrompt prompt = Prompt(0);
  const ObjectId shared{0, 16, LayerGroup::kGlobal};
  const SliceView slice = KitSlice(model_, prompt, shared, 2);
  const std::string bytes(reinterpret_cast<const char*>(slice.bytes.data()), slice.bytes.size());
  {
    RawDatabase raw(folder_);
    raw.Flush();
  }
  ASSERT_GT(RotOnDisk(folder_, bytes), 0);
  OpenLoading();
  EXPECT_FALSE(KitFetch(store_.get(), model_, prompt).ok());
  ReadSuspects(store_.get(), &clock_);
  EXPECT_EQ(Counted("quarantined_objects"), 1u);
  CheckInvariants(store());
  LoadAll();
  for (uint64_t other = 0; other < kPrompts; ++other) {
    EXPECT_EQ(Fetch(other), other < 10 ? 0u : kLast) << other;
  }
  EXPECT_EQ(Counted("quarantined_objects"), 1u);
  executor_->RunAll();
  OpenWhole();
  EXPECT_EQ(store_->List("default").size(), kPrompts - 10);
  ASSERT_TRUE(Publish(0).ok());
  EXPECT_EQ(Fetch(0), kLast);
}

// A boundary that is complete without a manifest gets one, once there is an index to weigh it in.
TEST_F(StoreLoad, ABoundaryFoundMeanwhileIsWrittenAfterwards) {
  OpenWhole();
  const KitPrompt chain{KitTokens(5, 100), {}};
  ASSERT_TRUE(KitPublish(store_.get(), model_, chain, {48, 80}).ok());
  OpenLoading();
  KitPrompt between = chain;
  between.tokens.resize(65);
  ASSERT_EQ(KitFetch(store_.get(), model_, between).value(), 64u);
  executor_->RunAll();
  EXPECT_EQ(store_->List("default").size(), 3u);
  LoadAll();
  executor_->RunAll();
  OpenWhole();
  EXPECT_EQ(store_->List("default").size(), 3u);
}

// As a crash between a write and the erase of what it replaced may leave it.
TEST_F(StoreLoad, OfTwoManifestsForOneBoundaryTheNewerStays) {
  Fill();
  DuplicateManifest(0);
  OpenLoading();
  LoadAll();
  executor_->RunAll();
  ExpectAllThere();
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 1u);
  store_.reset();
  RawDatabase raw(folder_);
  const auto all = raw.All("manifests");
  EXPECT_EQ(all.size(), kPrompts);
  EXPECT_EQ(all.back().first, NumberKey(kDuplicate));
}

TEST_F(StoreLoad, ADiskThatCannotBeReadForAWhileCostsNothing) {
  Fill();
  { RawDatabase flushes(folder_); }
  FaultyDisk disk;
  OpenLoading(disk.env());
  disk.Arm(DiskFault::kFailedRead, 1);
  const absl::Duration pause = Step();
  ASSERT_EQ(disk.struck(), 1);
  EXPECT_EQ(pause, absl::ZeroDuration()) << "one by one they were all read";
  LoadAll();
  ExpectAllThere();
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u);
  store_.reset();
}

TEST_F(StoreLoad, ASmallerLimitHoldsOnceAllIsLoaded) {
  Fill();
  OpenLoading(nullptr, 100'000);
  LoadAll();
  const TierUsage disk = store_->Stats().tiers.at(1);
  EXPECT_LE(disk.bytes, 100'000u);
  EXPECT_GT(store_->Stats().restore_points, 5u);
  EXPECT_LT(store_->Stats().restore_points, kPrompts);
  EXPECT_LT(Fetch(0), kLast) << "the oldest";
}

// Before its manifest would have been read, and after.
TEST_F(StoreLoad, WhatIsUsedMeanwhileIsNotTheFirstToGo) {
  Fill();
  OpenLoading(nullptr, 100'000);
  EXPECT_EQ(Fetch(0), kLast);
  Step();
  EXPECT_EQ(Fetch(11), kLast);
  LoadAll();
  EXPECT_LT(store_->Stats().restore_points, kPrompts);
  EXPECT_EQ(Fetch(0), kLast);
  EXPECT_EQ(Fetch(11), kLast);
  EXPECT_LT(Fetch(1), kLast);
}

// With the threads that it has in earnest.
TEST_F(StoreLoad, ServesAndTakesPublishesMeanwhile) {
  Fill();
  for (int round = 0; round < 5; ++round) {
    store_.reset();
    store_ = TieredStore::Open(Options(true)).value();
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (uint64_t first = 0; first < 3; ++first) {
      threads.emplace_back([&, first] {
        for (uint64_t prompt = first; prompt < kPrompts; prompt += 3) {
          const auto usable = KitFetch(store_.get(), model_, Prompt(prompt));
          if (!usable.ok() || *usable != kLast) ++wrong;
        }
      });
    }
    const uint64_t added = kPrompts + 10 * static_cast<uint64_t>(round);
    threads.emplace_back([&] {
      if (!Publish(added).ok() || !Publish(added + 1).ok()) ++wrong;
    });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(Fetch(added), kLast);
  }
  OpenWhole();
  ExpectAllThere();
  EXPECT_EQ(store_->List("default").size(), kPrompts + 10);
}

}  // namespace
}  // namespace hearth
