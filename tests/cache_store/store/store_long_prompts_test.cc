// Many prompts of many chunks: calls that process them release the store's lock from time to time.
// Also a prompt with more chunks than a store keeps.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "cache_store/store/calls/store.h"
#include "cache_store/store/store_core.h"
#include "proto/restore_rule.h"
#include "tests/support/faulty_tier.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr uint32_t kChunks = StoreCore::kStepsPerHold + 100, kLong = 16 * kChunks;

class StoreLongPrompts : public ::testing::Test {
 protected:
  StoreLongPrompts() { Open(0); }
  void Open(uint64_t disk_bytes) {
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 64 * kMiB;
    options.disk_bytes = disk_bytes;
    store_.reset();
    store_ = OpenStore(options, SteppedSeams(&executor_)).value();
    PublishLong();
  }
  Store* store() { return static_cast<Store*>(store_.get()); }
  // Publishes slices of zeros, because computing the kit's bytes takes time proportional to the
  // number of earlier tokens.
  void PublishLong() { Publish(long_, kLong); }
  void Publish(const KitPrompt& prompt, uint32_t boundary) {
    const KvLayout layout = model_.Layout().value();
    const std::vector<std::byte> zeros(layout.SliceBytes(16));
    PublishSpec spec;
    spec.fingerprint = model_;
    spec.tenant = prompt.tenant;
    spec.token_ids = prompt.tokens;
    spec.boundaries = {boundary};
    for (const ObjectId& id : NeededObjects(layout, boundary)) {
      spec.objects.push_back({id, std::vector<uint64_t>(layout.LayersOf(id.group).size(),
                                                        SliceDigest(zeros.data(), zeros.size()))});
    }
    auto session = store_->Publish(spec).value();
    for (const uint32_t i : session->needed()) {
      for (const uint32_t layer : layout.LayersOf(spec.objects[i].id.group)) {
        ASSERT_TRUE(session->PutSlice(i, layer, SliceView{nullptr, zeros}).ok());
      }
    }
    ASSERT_EQ(session->Commit()->boundaries.size(), 1u);
  }
  uint64_t YieldsOf(const std::function<void()>& call) {
    const uint64_t before = LockYields(store());
    call();
    return LockYields(store()) - before;
  }

  const TestFolder folder_;
  const Fingerprint model_ = KitModel().Make();
  const KitPrompt long_{KitTokens(1, kLong + 1), {}};
  const PrefixQuery query_ = KitQuery(model_, long_);
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(StoreLongPrompts, LongCallsReleaseLockBetweenPoints) {
  EXPECT_EQ(YieldsOf([&] {
              EXPECT_EQ(store_->Fetch(query_, 0, 0).value()->plan().usable_tokens, kLong);
              EXPECT_EQ(store_->Explain(query_)->usable_tokens, kLong);
            }),
            0u);
  EXPECT_EQ(YieldsOf([&] { EXPECT_EQ(store_->List("default").size(), 1u); }), 1u);
  EXPECT_GE(YieldsOf([&] {
              EXPECT_TRUE(store_->Quarantine(query_, {{0, 16, LayerGroup::kGlobal}}).ok());
            }),
            1u);
  EXPECT_EQ(store_->Fetch(query_, 0, 0).value()->plan().usable_tokens, 0u);
  EXPECT_EQ(YieldsOf([&] { PublishLong(); }), 1u);
  EXPECT_EQ(YieldsOf([&] { EXPECT_EQ(store_->DropAll("default", false)->dropped, 1u); }), 1u);
  CheckInvariants(store());
}

// 8,192 chunks of the smallest size are as long as the longest context of the models.
TEST_F(StoreLongPrompts, LongerPromptKeepsFirst8192Chunks) {
  constexpr uint32_t kMost = 16 * kMaxChunks;
  const KitPrompt longer{KitTokens(3, kMost + 33), {}};
  PublishSpec beyond;
  beyond.fingerprint = model_;
  beyond.tenant = longer.tenant;
  beyond.token_ids = longer.tokens;
  beyond.boundaries = {kMost + 16};
  const absl::Status refused = store_->Publish(beyond).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(refused.message(), "boundaries: must be above 0 and at most 131072; got 131088");
  Publish(longer, kMost);
  const PrefixQuery query = KitQuery(model_, longer);
  EXPECT_EQ(store_->Fetch(query, 0, 0).value()->plan().usable_tokens, kMost);
  EXPECT_EQ(store_->Explain(query)->usable_tokens, kMost);
  ClaimRequest ask;
  ask.compute_time = absl::Seconds(1);
  EXPECT_EQ(store_->Claim(query, ask)->usable_tokens, kMost);
  EXPECT_EQ(store_->Quarantine(query, {{0, 16, LayerGroup::kGlobal}})->objects, 1u);
  CheckInvariants(store());
}

TEST_F(StoreLongPrompts, ExplainLooksUpChunksAtMostTwice) {
  const uint64_t before = IndexFinds(store());
  ASSERT_TRUE(store_->Explain(query_).ok());
  EXPECT_LE(IndexFinds(store()) - before, 2 * kChunks + 100);
}

// While the lock is released, other threads may drop the restore point.
TEST_F(StoreLongPrompts, ConcurrentDropCausesMiss) {
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const uint32_t usable = store_->Fetch(query_, 0, 0).value()->plan().usable_tokens;
      EXPECT_TRUE(usable == kLong || usable == 0) << usable;
      EXPECT_TRUE(store_->Explain(query_).ok());
      store_->List("default");
    }
  });
  for (int round = 0; round < 6; ++round) {
    if (round % 2 == 0) {
      EXPECT_TRUE(store_->DropAll("default", true).ok());
    } else {
      EXPECT_TRUE(store_
                      ->Quarantine(query_, {{16, 16, LayerGroup::kGlobal},
                                            {kLong - 16, 16, LayerGroup::kLocal}})
                      .ok());
    }
    PublishLong();
  }
  stop = true;
  reader.join();
  EXPECT_EQ(store_->Fetch(query_, 0, 0).value()->plan().usable_tokens, kLong);
  EXPECT_TRUE(store_->DropAll("default", true).ok());
  CheckInvariants(store());
  EXPECT_EQ(store_->Stats().objects, 0u);
}

TEST_F(StoreLongPrompts, PinDuringDropAllKeepsPoint) {
  Publish({KitTokens(2, kLong + 1), {}}, kLong);
  StoreCore& core = *store()->core();
  bool is_first = true;
  core.between_holds = [&] {
    if (!std::exchange(is_first, false)) return;
    for (const RestorePoint& point : store_->List("default")) {
      EXPECT_TRUE(store_->SetPinned(point.id, "default", true).ok());
    }
  };
  EXPECT_EQ(store_->DropAll("default", false)->dropped, 1u);
  core.between_holds = nullptr;
  EXPECT_EQ(store_->List("default").size(), 1u);
  EXPECT_EQ(store_->DropAll("default", true)->dropped, 1u);
  CheckInvariants(store());
  EXPECT_EQ(store_->Stats().objects, 0u);
}

// A drop must erase its entries from disk itself if the queue of background jobs is full.
TEST_F(StoreLongPrompts, DropErasesDespiteFullQueue) {
  Open(64 * kMiB);
  Publish({KitTokens(2, 17), {}, "other"}, 16);
  StoreCore& core = *store()->core();
  const Digest expired = store_->List("other").at(0).id;
  {
    StoreLock lock(&core);
    core.catalog.Remove(core.catalog.Find(expired), Removal::kExpired);
  }
  executor_->SetFull(true);  // the queue already has the erase of that point
  core.between_holds = [&] { executor_->RunAll(); };
  EXPECT_EQ(store_->DropAll("default", false)->dropped, 1u);
  core.between_holds = nullptr;
  Open(64 * kMiB);
  EXPECT_EQ(store_->List("default").size(), 1u) << "published by Open";
  EXPECT_EQ(store_->Stats().restore_points, 1u) << "an erased point came back";
}

// A tier that calls `on_write` before each write of slices.
class HookedTier : public FaultyTier {
 public:
  HookedTier(SliceTier* tier, Faults* faults, const std::function<void()>* on_write)
      : FaultyTier(tier, faults), on_write_(on_write) {}
  absl::Status WriteAll(absl::Span<const SliceWrite> slices) override {
    if (*on_write_) (*on_write_)();
    return FaultyTier::WriteAll(slices);
  }

 private:
  const std::function<void()>* const on_write_;
};

TEST(StorePublishRaces, ImplicitPointDuringPublishHasOneManifest) {
  const TestFolder folder;
  KitModel kit;
  kit.window = 1000;  // a longer restore point uses all objects of a shorter one
  const Fingerprint model = kit.Make();
  const KitPrompt prompt{KitTokens(1, 97), {}};
  Faults faults;
  std::function<void()> on_write;
  ManualExecutor* executor = nullptr;
  const auto open = [&] {
    StoreOptions options;
    options.data_dir = folder.path();
    options.host_bytes = options.disk_bytes = kMiB;
    options.default_durability = Durability::kDisk;
    StoreSeams seams = SteppedSeams(&executor);
    seams.wrap_disk = [&](SliceTier* tier) {
      return std::make_unique<HookedTier>(tier, &faults, &on_write);
    };
    return OpenStore(options, std::move(seams)).value();
  };
  auto store = open();
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {80}).ok());
  on_write = [&] {
    const KitPrompt shorter{KitTokens(1, 65), {}};
    EXPECT_EQ(KitFetch(store.get(), model, shorter).value(), 64u);
  };
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {64, 96}).ok());
  on_write = nullptr;
  executor->RunAll();
  ASSERT_EQ(store->List("default").size(), 3u);
  for (const RestorePoint& point : store->List("default")) {
    EXPECT_TRUE(point.durable);
    if (point.tokens == 64) {
      ASSERT_TRUE(store->Drop(point.id, "default", false).ok());
    }
  }
  executor->RunAll();
  store.reset();
  store = open();
  EXPECT_EQ(store->List("default").size(), 2u) << "a dropped point came back";
}

}  // namespace
}  // namespace hearth
