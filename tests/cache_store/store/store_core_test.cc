// Tests of single parts of a store: lock, erasing, latencies, claims of promotions, copies to the
// device, failed writes.
#include "cache_store/store/store_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache_store/store/background/disk_writer.h"
#include "cache_store/store/background/promoter.h"
#include "proto/kv_layout.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/manual_executor.h"

namespace hearth {
namespace {

constexpr uint64_t kObjectBytes = 4096;

class StoreCoreTest : public testing::Test {
 protected:
  StoreCoreTest() {
    StoreOptions options;
    options.host_bytes = 2 * kObjectBytes;
    options.count_points = false;
    options.max_background_bytes = kObjectBytes;
    options.device = std::make_shared<FakeDevice>(uint64_t{1} << 20);
    StoreSeams seams;
    seams.clock = &clock_;
    core_ = std::make_unique<StoreCore>(options, seams, "secret", nullptr, nullptr);
    auto executor = std::make_unique<ManualExecutor>();
    executor_ = executor.get();
    core_->StartJobs(std::move(executor), nullptr);
  }

  // Returns a new object of one slice, held and in no tier.
  StoredObject* MakeObject() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu) {
    ObjectTable& objects = core_->objects;
    const uint64_t number = objects.NextNumber();
    Digest key{};
    key[0] = static_cast<uint8_t>(number);
    return objects.NewObject(number, key, ObjectId{}, {SliceDigest(bytes_.data(), bytes_.size())},
                             {0}, kObjectBytes);
  }
  SliceView View() const {
    auto owner = AllocateSlice(bytes_.size());
    std::copy(bytes_.begin(), bytes_.end(), reinterpret_cast<char*>(owner.get()));
    const absl::Span<const std::byte> bytes(owner.get(), bytes_.size());
    return SliceView{std::move(owner), bytes};
  }
  HostCopy Copy() const { return std::make_shared<const std::vector<SliceView>>(1, View()); }
  uint64_t Counted(Counter counter) const { return core_->meters.counters.Get(counter); }

  const std::string bytes_ = std::string(kObjectBytes, 'x');
  FakeClock clock_;
  std::unique_ptr<StoreCore> core_;
  ManualExecutor* executor_ = nullptr;
};

TEST_F(StoreCoreTest, YieldLetsWaitingThreadRun) {
  bool had_it = false;
  std::thread other;
  {
    StoreLock lock(core_.get());
    other = std::thread([&] {
      StoreLock waits(core_.get());
      had_it = true;
    });
    while (core_->waiting() == 0) std::this_thread::yield();
    EXPECT_FALSE(had_it);
    EXPECT_TRUE(core_->Yield(StoreCore::kStepsPerHold));
    EXPECT_TRUE(had_it);
  }
  other.join();
}

TEST_F(StoreCoreTest, YieldLetsReadyClaimantRun) {
  const std::vector<Digest> keys = {Digest{}};
  bool asked = false, had_it = false;
  StoreLock lock(core_.get());
  core_->Claim(keys);
  std::thread other([&] {
    StoreLock waits(core_.get());
    asked = true;
    core_->Claim(keys);
    had_it = true;
    core_->flight.Release(keys);
  });
  while (!asked) core_->Yield(StoreCore::kStepsPerHold);
  core_->Yield(StoreCore::kStepsPerHold);
  EXPECT_FALSE(had_it) << "its key is claimed";
  core_->flight.Release(keys);
  core_->Yield(StoreCore::kStepsPerHold);
  EXPECT_TRUE(had_it);
  other.join();
}

TEST_F(StoreCoreTest, MutualYieldsDoNotDeadlock) {
  const std::vector<Digest> keys = {Digest{}};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        StoreLock lock(core_.get());
        if (i < 2) core_->Claim(keys);
        core_->Yield(StoreCore::kStepsPerHold);
        core_->Yield(StoreCore::kStepsPerHold);
        if (i < 2) core_->flight.Release(keys);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(core_->waiting(), 0u);
}

TEST_F(StoreCoreTest, UnlockFreesRemovedRamCopies) {
  StoredObject* object = nullptr;
  {
    StoreLock lock(core_.get());
    object = MakeObject();
    core_->objects.SetInHost(object, Copy());
  }
  const std::weak_ptr<const void> memory = core_->IntactCopy(object)->at(0).owner;
  {
    StoreLock lock(core_.get());
    core_->objects.Release(object);
    EXPECT_FALSE(memory.expired());
  }
  EXPECT_TRUE(memory.expired());
}

TEST_F(StoreCoreTest, StoreWithoutDiskSchedulesNoErase) {
  {
    StoreLock lock(core_.get(), StoreLock::kErasesItself);
    core_->objects.Release(MakeObject());
  }
  EXPECT_TRUE(core_->EraseFromDisk().ok());
  executor_->RunAll();
  EXPECT_EQ(Counted(Counter::kTierErrors), 0u);
}

TEST_F(StoreCoreTest, MemoryOfPromotionsIsLimited) {
  Promoter promoter(core_.get(), nullptr);
  StoredObject *first = nullptr, *second = nullptr;
  {
    StoreLock lock(core_.get());
    first = MakeObject();
    second = MakeObject();
  }
  EXPECT_TRUE(promoter.Claim(first));
  EXPECT_FALSE(promoter.Claim(first)) << "somebody promotes it";
  EXPECT_FALSE(promoter.Claim(second)) << "over the limit";
  EXPECT_EQ(Counted(Counter::kPromotionsSkipped), 1u);
  {
    StoreLock lock(core_.get());
    promoter.Unclaim(first);
  }
  EXPECT_TRUE(promoter.Claim(second));
  StoreLock lock(core_.get());
  promoter.Unclaim(second);
  core_->objects.Release(first);
  core_->objects.Release(second);
}

TEST_F(StoreCoreTest, SecondFetchCopiesToDevice) {
  Promoter copier(core_.get(), nullptr);
  StoredObject *kept = nullptr, *gone = nullptr;
  {
    StoreLock lock(core_.get());
    kept = MakeObject();
    gone = MakeObject();
    core_->objects.SetInHost(kept, Copy());
    core_->objects.SetInHost(gone, Copy());
    copier.NoteFetched(kept);
  }
  executor_->RunAll();
  EXPECT_FALSE(core_->tiers.device->Has(kept->number));
  {
    StoreLock lock(core_.get());
    for (StoredObject* object : {kept, kept, gone, gone}) copier.NoteFetched(object);
    core_->objects.Release(gone);
  }
  executor_->RunAll();
  EXPECT_TRUE(core_->tiers.device->Has(kept->number));
  EXPECT_EQ(Counted(Counter::kGpuPromotedObjects), 1u);
  EXPECT_EQ(Counted(Counter::kGpuPromotionsDropped), 1u) << "it left RAM while its copy waited";
  StoreLock lock(core_.get());
  core_->objects.Release(kept);
}

TEST_F(StoreCoreTest, AbandonedDiskWriteIsErased) {
  DiskWriter writer(core_.get());
  StoreLock lock(core_.get());
  Persisting work;
  StoredObject *begun = MakeObject(), *other = MakeObject();
  work.objects = {{begun, begun->key(), {}}, {other, other->key(), {}}};
  work.begun_objects = 1;
  EXPECT_THAT(writer.AbandonWrite(work), testing::ElementsAre(begun->number));
  EXPECT_TRUE(begun->disk.begun);
  EXPECT_FALSE(other->disk.begun);
  work.begun_manifests = true;
  work.manifests.resize(1);
  work.manifests[0].number = 7;
  work.points.resize(1);
  writer.AbandonWrite(work);
  EXPECT_THAT(core_->objects.TakeGarbage().manifests, testing::ElementsAre(7));
  for (StoredObject* object : {begun, other}) core_->objects.Release(object);
}

TEST(StoreMeters, OnlyExistingTiersAreShown) {
  StoreMeters meters;
  meters.fetches[StoreMeters::Of(Tier::kHost)].Observe(std::chrono::milliseconds(1));
  const auto fetches = [&](bool has_disk, bool has_device, bool has_shared) {
    std::vector<std::string> tiers;
    for (const LatencySeries& series : meters.Latencies(has_disk, has_device, has_shared)) {
      if (series.name == "fetch") tiers.push_back(series.label_value);
    }
    return tiers;
  };
  EXPECT_THAT(fetches(false, false, false), testing::ElementsAre(TierName(Tier::kHost)));
  EXPECT_THAT(fetches(true, true, true),
              testing::ElementsAre(TierName(Tier::kGpu), TierName(Tier::kHost),
                                   TierName(Tier::kDisk), TierName(Tier::kShared)));
}

}  // namespace
}  // namespace hearth
