// The RAM of restore points beside their KV: it counts into host_bytes and is bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache_store/store/calls/store.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr uint32_t kTinyTokens = 16;

class StorePointsTest : public ::testing::Test {
 protected:
  StorePointsTest() {
    options_.data_dir = folder_.path();
    options_.disk_bytes = 64 * kMiB;
    options_.on_warning = [this](const std::string& text) { said_.push_back(text); };
  }
  void Open(uint64_t host_bytes) {
    store_.reset();
    options_.host_bytes = host_bytes;
    store_ = TieredStore::Open(options_).value();
  }
  absl::Status Publish(uint64_t seed, Durability durability = Durability::kDisk) {
    return KitPublish(store_.get(), model_, {KitTokens(seed, kTinyTokens), {}}, {kTinyTokens},
                      durability)
        .status();
  }
  bool IsThere(uint64_t seed) {
    std::vector<uint32_t> tokens = KitTokens(seed, kTinyTokens + 1);
    return KitFetch(store_.get(), model_, {std::move(tokens), {}}).value() == kTinyTokens;
  }
  void ExpectWithinHostBytes() {
    CheckInvariants(store_.get());
    const StoreStats stats = store_->Stats();
    EXPECT_LE(stats.tiers.at(0).bytes + stats.point_bytes, options_.host_bytes);
    EXPECT_LE(stats.point_bytes, stats.point_limit_bytes);
  }

  const Fingerprint model_ = KitModel().Make();
  TestFolder folder_;
  StoreOptions options_;
  std::vector<std::string> said_;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(StorePointsTest, ManyTinyPointsStayWithinHostBytes) {
  Open(256 << 10);
  for (uint64_t seed = 0; seed < 500; ++seed) {
    ASSERT_EQ(Publish(seed, seed % 2 == 0 ? Durability::kDisk : Durability::kMemory),
              absl::OkStatus());
    if (seed % 50 == 0) ExpectWithinHostBytes();
  }
  ExpectWithinHostBytes();
  const StoreStats stats = store_->Stats();
  EXPECT_LT(stats.restore_points, 200u) << "half of 256 KiB, about 1 KB each";
  EXPECT_GT(stats.restore_points, 60u);
  EXPECT_GT(stats.Of(Counter::kEvicted), 0u);
  EXPECT_TRUE(IsThere(499));
}

TEST_F(StorePointsTest, PinnedPointsThatFillRamRefuseMore) {
  options_.max_pinned_fraction = 1.0;
  Open(64 << 10);
  absl::Status status;
  for (uint64_t seed = 0; seed < 100 && status.ok(); ++seed) {
    status = Publish(seed);
    for (const RestorePoint& point : store_->List("default")) {
      ASSERT_EQ(store_->SetPinned(point.id, "default", true).status(), absl::OkStatus());
    }
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("raise host_bytes"));
  ExpectWithinHostBytes();
  EXPECT_GT(store_->Stats().restore_points, 4u);
}

TEST_F(StorePointsTest, StartWithTooManyPointsEvictsTheOldest) {
  Open(8 * kMiB);
  for (uint64_t seed = 0; seed < 200; ++seed) ASSERT_EQ(Publish(seed), absl::OkStatus());
  ASSERT_EQ(store_->Stats().restore_points, 200u);
  Open(128 << 10);
  const uint64_t left = store_->Stats().restore_points;
  EXPECT_LT(left, 100u);
  EXPECT_GT(left, 30u);
  EXPECT_THAT(said_, Contains(HasSubstr("of 200 restore points are evicted")));
  ExpectWithinHostBytes();
  EXPECT_EQ(Publish(1000), absl::OkStatus());
  Open(8 * kMiB);
  EXPECT_LE(store_->Stats().restore_points, left + 1) << "they are gone from the disk, too";
}

TEST_F(StorePointsTest, WithoutHostTierPointsHaveTheirOwnLimit) {
  Open(0);
  for (uint64_t seed = 0; seed < 20; ++seed) ASSERT_EQ(Publish(seed), absl::OkStatus());
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.restore_points, 20u);
  EXPECT_EQ(stats.point_limit_bytes, StoreOptions::kPointBytesWithoutHost);
  EXPECT_GT(stats.point_bytes, 20u * 500);
}

}  // namespace
}  // namespace hearth
