// A store with a gpu tier: which objects are copied to the device and when, reads from the device,
// and that the store works after losing it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cache_store/store/store_seams.h"
#include "tests/support/fake_device.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

// a restore point of this length has two global and two local objects
constexpr uint32_t kDevicePointTokens = 32;

class StoreDeviceTest : public testing::Test {
 protected:
  void Open(uint64_t device_bytes = 1 << 20, uint64_t host_bytes = 1 << 20, bool disk = false) {
    store_ = nullptr;
    device_ = std::make_shared<FakeDevice>(device_bytes);
    StoreOptions options;
    options.host_bytes = host_bytes;
    options.count_points = false;
    if (disk) options.data_dir = folder_.path();
    options.device = device_;
    options.on_device_lost = [this](const absl::Status& why) { lost_.push_back(why); };
    StoreSeams seams = SteppedSeams(&executor_);
    store_ = OpenStore(options, std::move(seams)).value();
  }
  KitPrompt Prompt(uint64_t seed) const { return {KitTokens(seed, kDevicePointTokens + 1), {}}; }
  void Publish(uint64_t seed) {
    ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(seed), {kDevicePointTokens}).ok());
  }
  std::unique_ptr<FetchSession> Fetch(uint64_t seed) {
    return store_->Fetch(KitQuery(model_, Prompt(seed)), 0, 0).value();
  }
  void Read(uint64_t seed) {
    EXPECT_EQ(KitFetch(store_.get(), model_, Prompt(seed)).value(), kDevicePointTokens);
  }
  // Publishes a prompt and reads it twice, so that it is copied to the device.
  void Promote(uint64_t seed) {
    Publish(seed);
    Read(seed);
    Read(seed);
    executor_->RunAll();
  }
  // Reads all objects of the plan, only from the device. Returns false if the device does not have
  // an object.
  bool ReadFromDevice(FetchSession* session, uint64_t seed) {
    const LookupPlan& plan = session->plan();
    for (size_t i = 0; i < plan.objects.size(); ++i) {
      const DeviceRef copy = session->OnDevice(i);
      if (copy == nullptr) return false;
      const std::byte* at = copy->bytes;
      for (const uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
        const SliceView expected = KitSlice(model_, Prompt(seed), plan.objects[i].id, layer);
        EXPECT_EQ(std::memcmp(at, expected.bytes.data(), expected.bytes.size()), 0);
        at += expected.bytes.size();
      }
      EXPECT_EQ(at, copy->bytes + copy->range.bytes);
    }
    return true;
  }
  bool OnDevice(uint64_t seed) { return Fetch(seed)->plan().on_device; }
  uint64_t Count(const char* name) { return store_->Stats().counters.at(name); }
  uint64_t FetchesTimed(const std::string& tier) {
    for (const LatencySeries& series : store_->Stats().latencies) {
      if (series.name == "fetch" && series.label_value == tier) return series.counts.count();
    }
    return 0;
  }
  TierUsage Gpu() { return store_->Stats().tiers.back(); }

  const TestFolder folder_;
  const Fingerprint model_ = KitModel().Make();
  std::shared_ptr<FakeDevice> device_;
  ManualExecutor* executor_ = nullptr;
  std::vector<absl::Status> lost_;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(StoreDeviceTest, SecondFetchPromotesToDevice) {
  Open();
  Publish(1);
  Read(1);
  executor_->RunAll();
  EXPECT_FALSE(OnDevice(1));
  Read(1);
  EXPECT_FALSE(OnDevice(1)) << "the copy is a background job's";
  executor_->RunAll();
  const auto session = Fetch(1);
  EXPECT_TRUE(session->plan().on_device);
  EXPECT_EQ(session->plan().slowest_tier, Tier::kHost) << "for whoever cannot read the device";
  EXPECT_TRUE(ReadFromDevice(session.get(), 1));
  EXPECT_EQ(Count("gpu_promoted_objects"), 4u);
  EXPECT_EQ(Gpu().tier, Tier::kGpu);
  EXPECT_EQ(Gpu().objects, 4u);
  EXPECT_EQ(Gpu().bytes, session->plan().total_bytes);
  EXPECT_EQ(Gpu().read_bytes, session->plan().total_bytes);
  EXPECT_EQ(Gpu().hit_tokens, kDevicePointTokens);
  EXPECT_EQ(FetchesTimed("gpu"), 1u);
  EXPECT_EQ(FetchesTimed("host"), 2u);
}

TEST_F(StoreDeviceTest, ListAndExplainNameTier) {
  Open();
  Publish(1);
  EXPECT_EQ(store_->List("default").at(0).tier, Tier::kHost);
  Read(1);
  Read(1);
  executor_->RunAll();
  EXPECT_EQ(store_->List("default").at(0).tier, Tier::kGpu);
  const ExplainReport report = store_->Explain(KitQuery(model_, Prompt(1))).value();
  EXPECT_EQ(report.boundaries.back().slowest_tier, Tier::kGpu);
}

TEST_F(StoreDeviceTest, FetchWithoutReadsPromotesNothing) {
  Open();
  Publish(1);
  for (int i = 0; i < 5; ++i) Fetch(1);
  executor_->RunAll();
  EXPECT_EQ(Gpu().objects, 0u);
}

TEST_F(StoreDeviceTest, HitCountsForSlowestTierRead) {
  Open();
  Promote(1);
  const uint64_t before = store_->Stats().tiers.at(0).hit_tokens;
  const auto session = Fetch(1);
  const LookupPlan& plan = session->plan();
  for (size_t i = 1; i < plan.objects.size(); ++i) ASSERT_NE(session->OnDevice(i), nullptr);
  for (const uint32_t layer : plan.layout.LayersOf(plan.objects[0].id.group)) {
    ASSERT_TRUE(session->ReadSlice(0, layer).ok());
  }
  EXPECT_EQ(store_->Stats().tiers.at(0).hit_tokens, before + kDevicePointTokens);
  EXPECT_EQ(Gpu().hit_tokens, 0u);
}

TEST_F(StoreDeviceTest, FullQueueSkipsDevicePromotion) {
  Open();
  Publish(1);
  executor_->SetFull(true);
  Read(1);
  Read(1);
  EXPECT_EQ(Count("gpu_promotions_dropped"), 4u);
  executor_->SetFull(false);
  Read(1);
  executor_->RunAll();
  EXPECT_TRUE(OnDevice(1)) << "the next fetch asks again";
}

TEST_F(StoreDeviceTest, ObjectIsQueuedOnceForDevice) {
  Open();
  Publish(1);
  for (int i = 0; i < 5; ++i) Read(1);
  executor_->RunAll();
  EXPECT_EQ(Count("gpu_promoted_objects"), 4u);
  EXPECT_EQ(Count("gpu_promotions_dropped"), 0u);
}

TEST_F(StoreDeviceTest, FullDeviceSkipsPromotions) {
  Open(/*device_bytes=*/4096);
  Publish(1);
  Read(1);
  Read(1);
  const auto held = [&] {
    executor_->RunAll();
    return Fetch(1);
  }();
  EXPECT_EQ(Gpu().objects, 1u) << "one at a time fits, each evicts the one before";
  EXPECT_EQ(Count("gpu_evicted_objects"), 3u);
  std::vector<DeviceRef> leases;
  for (size_t i = 0; i < held->plan().objects.size(); ++i) leases.push_back(held->OnDevice(i));
  EXPECT_EQ(leases.size() - std::count(leases.begin(), leases.end(), nullptr), 1u);
  Publish(2);
  Read(2);
  Read(2);
  executor_->RunAll();
  EXPECT_EQ(Count("gpu_promotions_dropped"), 4u) << "what is leased stays";
}

TEST_F(StoreDeviceTest, EvictedCopyNeedsTwoFetches) {
  Open(/*device_bytes=*/4 * 4096);
  Promote(1);
  Promote(2);
  ASSERT_FALSE(OnDevice(1));
  Read(1);
  executor_->RunAll();
  EXPECT_FALSE(OnDevice(1));
  Read(1);
  executor_->RunAll();
  EXPECT_TRUE(OnDevice(1));
}

TEST_F(StoreDeviceTest, DroppedPointLeavesDevice) {
  Open();
  Promote(1);
  auto session = Fetch(1);
  const DeviceRef lease = session->OnDevice(0);
  ASSERT_NE(lease, nullptr);
  const std::vector<std::byte> before(lease->bytes, lease->bytes + lease->range.bytes);
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  session = nullptr;
  EXPECT_EQ(Gpu().objects, 0u);
  Promote(2);
  EXPECT_EQ(std::memcmp(lease->bytes, before.data(), before.size()), 0);
}

TEST_F(StoreDeviceTest, QuarantinedObjectIsNotLeased) {
  Open();
  Promote(1);
  const auto promised = Fetch(1);
  ASSERT_TRUE(promised->plan().on_device);
  FlipInRam(store_.get());
  EXPECT_TRUE(absl::IsDataLoss(Fetch(1)->ReadSlice(0, 2).status()));
  EXPECT_EQ(promised->OnDevice(0), nullptr);
  EXPECT_EQ(Fetch(1)->plan().usable_tokens, 0u);
}

TEST_F(StoreDeviceTest, DamagedBytesAreNotCopied) {
  Open();
  Publish(1);
  Read(1);
  Read(1);
  FlipInRam(store_.get());
  executor_->RunAll();
  EXPECT_EQ(Count("gpu_promotions_failed"), 1u);
  EXPECT_EQ(Gpu().objects, 3u);
  EXPECT_FALSE(OnDevice(1));
}

TEST_F(StoreDeviceTest, FailedDeviceCopyIsCounted) {
  Open();
  Publish(1);
  Read(1);
  Read(1);
  device_->FlipOnce();
  executor_->RunAll();
  EXPECT_EQ(Count("gpu_promotions_failed"), 1u);
  Read(1);
  executor_->RunAll();
  EXPECT_TRUE(OnDevice(1));
  EXPECT_TRUE(ReadFromDevice(Fetch(1).get(), 1));
}

TEST_F(StoreDeviceTest, LostDeviceDisablesOnlyGpuTier) {
  Open();
  Promote(1);
  Publish(2);
  Read(2);
  Read(2);
  device_->Lose();
  const auto promised = Fetch(1);
  executor_->RunAll();
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(promised->OnDevice(0), nullptr);
  EXPECT_TRUE(KitReadAll(promised.get(), model_, Prompt(1)).ok());
  EXPECT_FALSE(OnDevice(1));
  for (int i = 0; i < 3; ++i) Read(2);
  executor_->RunAll();
  EXPECT_EQ(lost_.size(), 1u);
  EXPECT_EQ(store_->List("default").at(0).tier, Tier::kHost);
  EXPECT_EQ(Gpu().capacity_bytes, 0u);
}

TEST_F(StoreDeviceTest, ReadFromDeviceDemotesNothing) {
  const uint64_t point_bytes = 6 * 256;
  Open(1 << 20, 2 * point_bytes, /*disk=*/true);
  Promote(1);
  for (uint64_t seed = 2; seed <= 4; ++seed) Publish(seed);
  const uint64_t demoted = Count("demoted_objects");
  const auto session = Fetch(1);
  ASSERT_EQ(session->plan().slowest_tier, Tier::kDisk);
  EXPECT_TRUE(ReadFromDevice(session.get(), 1));
  EXPECT_EQ(Count("demoted_objects"), demoted);
  EXPECT_EQ(Gpu().hit_tokens, kDevicePointTokens);
}

TEST_F(StoreDeviceTest, EvictedObjectIsNotCopiedToDevice) {
  Open();
  Publish(1);
  Read(1);
  Read(1);
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  executor_->RunAll();
  EXPECT_EQ(Count("gpu_promotions_dropped"), 4u);
  EXPECT_EQ(Gpu().objects, 0u);
}

// The restore point is dropped while its bytes are copied to the device.
TEST_F(StoreDeviceTest, DropDuringDeviceCopyHidesObject) {
  Open();
  Publish(1);
  Read(1);
  Read(1);
  device_->Meanwhile([&] { ASSERT_TRUE(store_->DropAll("default", true).ok()); });
  executor_->RunAll();
  EXPECT_EQ(Gpu().objects, 0u);
  EXPECT_EQ(store_->Stats().objects, 0u);
}

}  // namespace
}  // namespace hearth
