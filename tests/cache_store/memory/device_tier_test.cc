// The gpu tier alone, with a fake device in host memory: leases (DeviceRef), order of eviction,
// reuse of ranges, and failures of the device.
#include "cache_store/memory/device_tier.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/support/fake_device.h"

namespace hearth {
namespace {

constexpr uint64_t kGranule = 4096;

// Returns an object of two slices, each of `bytes` bytes with the value `fill`.
std::vector<SliceWrite> Slices(uint64_t object, uint8_t fill, size_t bytes = kGranule / 2) {
  std::vector<SliceWrite> slices;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const std::vector<std::byte> content(bytes, std::byte{fill});
    slices.push_back(
        {{object, layer, bytes, SliceDigest(content.data(), bytes)}, CopySlice(content)});
  }
  return slices;
}

bool IsFilledWith(const DeviceRef& lease, uint8_t fill) {
  return std::all_of(lease->bytes, lease->bytes + lease->range.bytes,
                     [fill](std::byte byte) { return byte == std::byte{fill}; });
}

class DeviceTierTest : public testing::Test {
 protected:
  absl::Status Put(uint64_t object, uint8_t fill, size_t bytes = kGranule / 2) {
    absl::StatusOr<DeviceRef> copy = tier_.CopyIn(Slices(object, fill, bytes));
    if (copy.ok()) tier_.MakeVisible(object, *std::move(copy));
    return copy.status();
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(4 * kGranule);
  std::vector<absl::Status> lost_;
  DeviceTier tier_{device_, [this](const absl::Status& status) { lost_.push_back(status); }};
};

TEST_F(DeviceTierTest, CopyIsFoundOnceMadeVisible) {
  const auto copy = tier_.CopyIn(Slices(7, 0xAB));
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(tier_.Find(7), nullptr);
  tier_.MakeVisible(7, *copy);
  const DeviceRef lease = tier_.Find(7);
  ASSERT_NE(lease, nullptr);
  EXPECT_EQ(lease->range.bytes, kGranule);
  EXPECT_TRUE(IsFilledWith(lease, 0xAB));
  EXPECT_EQ(tier_.usage().bytes, kGranule);
  EXPECT_EQ(tier_.Find(8), nullptr);
}

TEST_F(DeviceTierTest, LeastRecentlyUsedCopyIsEvicted) {
  for (uint64_t object = 1; object <= 4; ++object) ASSERT_TRUE(Put(object, 1).ok());
  EXPECT_NE(tier_.Find(1), nullptr);  // Find() counts as a use
  EXPECT_TRUE(tier_.Has(2));          // Has() does not count as a use
  ASSERT_TRUE(Put(5, 1).ok());
  ASSERT_TRUE(Put(6, 1).ok());
  EXPECT_TRUE(tier_.Has(1));
  EXPECT_FALSE(tier_.Has(2));
  EXPECT_FALSE(tier_.Has(3));
  EXPECT_TRUE(tier_.Has(4));
  EXPECT_EQ(tier_.usage().evicted_objects, 2u);
  EXPECT_EQ(tier_.usage().written_bytes, 6 * kGranule);
  EXPECT_EQ(tier_.usage().unread_bytes, 2 * kGranule);
  EXPECT_EQ(tier_.usage().bytes, 4 * kGranule);
}

TEST_F(DeviceTierTest, LeasedRangeIsNotReused) {
  for (uint64_t object = 1; object <= 4; ++object) {
    ASSERT_TRUE(Put(object, static_cast<uint8_t>(object)).ok());
  }
  DeviceRef first = tier_.Find(1);
  const std::vector<DeviceRef> others = {tier_.Find(2), tier_.Find(3), tier_.Find(4)};
  EXPECT_TRUE(absl::IsResourceExhausted(Put(5, 5)));
  EXPECT_EQ(tier_.usage().evicted_objects, 0u);
  tier_.Erase({1});  // the copy is no longer found, but its lease can still be read
  EXPECT_FALSE(tier_.Has(1));
  EXPECT_TRUE(absl::IsResourceExhausted(Put(5, 5)));
  EXPECT_TRUE(IsFilledWith(first, 1));
  const std::byte* const range = first->bytes;
  first = nullptr;
  ASSERT_TRUE(Put(5, 5).ok());
  EXPECT_EQ(tier_.Find(5)->bytes, range);
}

TEST_F(DeviceTierTest, EvictionSkipsLeasedObjects) {
  for (uint64_t object = 1; object <= 4; ++object) ASSERT_TRUE(Put(object, 1).ok());
  const DeviceRef first = tier_.Find(1);
  for (uint64_t object = 2; object <= 4; ++object) ASSERT_NE(tier_.Find(object), nullptr);
  ASSERT_TRUE(Put(5, 5).ok());
  EXPECT_TRUE(tier_.Has(1)) << "its going would give no room now";
  EXPECT_FALSE(tier_.Has(2));
  EXPECT_EQ(tier_.usage().evicted_objects, 1u);
}

TEST_F(DeviceTierTest, OversizedObjectEvictsNothing) {
  for (uint64_t object = 1; object <= 4; ++object) ASSERT_TRUE(Put(object, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Put(5, 5, 4 * kGranule)));
  const DeviceRef held = tier_.Find(1);
  EXPECT_TRUE(absl::IsResourceExhausted(Put(5, 5, 2 * kGranule)));
  EXPECT_EQ(tier_.usage().objects.size(), 4u);
}

TEST_F(DeviceTierTest, LeaseOutlivesTier) {
  DeviceRef lease;
  {
    DeviceTier tier(std::make_shared<FakeDevice>(kGranule), nullptr);
    tier.MakeVisible(1, tier.CopyIn(Slices(1, 9)).value());
    lease = tier.Find(1);
  }
  EXPECT_TRUE(IsFilledWith(lease, 9));
}

TEST_F(DeviceTierTest, FailedCopyFreesItsRange) {
  for (int fault = 0; fault < 2; ++fault) {
    if (fault == 0) device_->FailOnce(absl::InternalError("a copy engine on fire"));
    if (fault == 1) device_->FlipOnce();
    const absl::Status status = Put(1, 1);
    EXPECT_EQ(status.code(),
              fault == 0 ? absl::StatusCode::kInternal : absl::StatusCode::kDataLoss);
    EXPECT_FALSE(tier_.Has(1));
    EXPECT_TRUE(lost_.empty());
    ASSERT_TRUE(Put(2, 2, 2 * kGranule).ok()) << "the whole pool is free again";
    tier_.Erase({2});
  }
}

TEST_F(DeviceTierTest, LeaseEndChangesRangeGeneration) {
  EXPECT_EQ(tier_.segment(), nullptr) << "shared only on demand";
  DeviceTier tier(device_, nullptr, /*shared=*/true);
  ASSERT_NE(tier.segment(), nullptr);
  EXPECT_EQ(tier.segment()->layout().data_bytes, 4 * kGranule);
  const SegmentRange first = (*tier.CopyIn(Slices(1, 1)))->range;
  EXPECT_NE(tier.segment()->generation(first.offset).load(), first.generation);
  const DeviceRef second = *tier.CopyIn(Slices(1, 1));
  ASSERT_EQ(second->range.offset, first.offset);
  EXPECT_EQ(tier.segment()->generation(first.offset).load(), second->range.generation);
}

TEST_F(DeviceTierTest, LostDeviceDropsAllCopies) {
  ASSERT_TRUE(Put(1, 1).ok());
  device_->Lose();
  EXPECT_TRUE(absl::IsUnavailable(Put(2, 2)));
  EXPECT_TRUE(absl::IsUnavailable(Put(3, 3)));
  EXPECT_EQ(tier_.Find(1), nullptr);
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(tier_.usage().capacity_bytes, 0u);
  EXPECT_EQ(tier_.usage().bytes, 0u);
}

// While bytes are copied to another range, object 2 is leased and erased, and its range is then
// needed. The lease must still show the old bytes.
TEST_F(DeviceTierTest, LeasedRangeErasedDuringCopyStays) {
  for (uint64_t object = 1; object <= 4; ++object) {
    ASSERT_TRUE(Put(object, static_cast<uint8_t>(object)).ok());
  }
  DeviceRef lease;
  device_->Meanwhile([&] {
    lease = tier_.Find(2);
    tier_.Erase({2});
  });
  ASSERT_TRUE(Put(5, 5).ok());  // replaces object 1
  // replaces object 3; object 2 is erased, but its range is still leased
  ASSERT_TRUE(Put(6, 6).ok());
  EXPECT_TRUE(IsFilledWith(lease, 2));
  EXPECT_FALSE(tier_.Has(3));
  EXPECT_TRUE(tier_.Has(4));
}

TEST_F(DeviceTierTest, ConcurrentReadersGetTheirObjectsBytes) {
  std::atomic<bool> done{false};
  std::atomic<uint64_t> read{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      for (uint64_t object = 0; !done; object = (object + 1) % 8) {
        const DeviceRef lease = tier_.Find(object);
        if (lease == nullptr) continue;
        ASSERT_TRUE(IsFilledWith(lease, static_cast<uint8_t>(object)));
        ++read;
      }
    });
  }
  std::mt19937 random(3);
  for (int i = 0; i < 2000 || read < 1000; ++i) {
    const uint64_t object = random() % 8;
    tier_.Erase({object});
    if (random() % 4 != 0) Put(object, static_cast<uint8_t>(object)).IgnoreError();
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
}

// Compares random copies, erases, leases and device errors with a model of the expected contents.
TEST_F(DeviceTierTest, RandomOperationsKeepInvariants) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto device = std::make_shared<FakeDevice>(16 * kGranule);
    DeviceTier tier(device, nullptr);
    std::mt19937_64 random(seed);
    std::vector<std::pair<DeviceRef, uint8_t>> leases;
    bool breaks = false;  // whether the next copy that gets a range will fail
    for (int step = 0; step < 300; ++step) {
      const uint64_t object = random() % 24;
      const auto fill = static_cast<uint8_t>(object + 1);
      switch (random() % 5) {
        case 0:
        case 1: {
          if (tier.Has(object)) break;
          if (random() % 8 == 0) {
            device->FlipOnce();
            breaks = true;
          }
          auto copy = tier.CopyIn(Slices(object, fill, 1 + random() % (2 * kGranule)));
          if (!absl::IsResourceExhausted(copy.status())) {
            ASSERT_NE(copy.ok(), breaks);
            breaks = false;
          }
          if (copy.ok()) tier.MakeVisible(object, *std::move(copy));
          break;
        }
        case 2:
          tier.Erase({object});
          ASSERT_FALSE(tier.Has(object));
          break;
        case 3:
          if (DeviceRef lease = tier.Find(object)) leases.emplace_back(std::move(lease), fill);
          break;
        case 4:
          if (!leases.empty()) leases.erase(leases.begin() + random() % leases.size());
      }
      for (const auto& [lease, content] : leases) ASSERT_TRUE(IsFilledWith(lease, content));
      const DeviceTier::Usage usage = tier.usage();
      ASSERT_LE(usage.bytes, usage.capacity_bytes);
      for (const uint64_t held : usage.objects) {
        ASSERT_TRUE(IsFilledWith(tier.Find(held), static_cast<uint8_t>(held + 1)));
      }
    }
  }
}

}  // namespace
}  // namespace hearth
