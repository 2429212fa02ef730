// RAM for the bookkeeping of restore points: it counts towards host_bytes, and is limited.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/store/calls/store.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kTinyTokens = 16;
constexpr uint32_t kLongChunks = 160;
// tokens of a long prompt; its bookkeeping takes about 400 bytes for each chunk
constexpr uint32_t kLongTokens = kLongChunks * kTinyTokens;

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
  absl::Status Publish(uint64_t seed, Durability durability = Durability::kDisk,
                       uint32_t tokens = kTinyTokens) {
    return KitPublish(store_.get(), model_, {KitTokens(seed, tokens), {}}, {tokens}, durability)
        .status();
  }
  absl::Status PublishLong(uint64_t seed) { return Publish(seed, Durability::kDisk, kLongTokens); }
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

TEST_F(StorePointsTest, TinyPointsStayWithinLimit) {
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

TEST_F(StorePointsTest, PinnedPointsRefuseNewPublishes) {
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

TEST_F(StorePointsTest, OversizedPublishEvictsNothing) {
  Open(256 << 10);
  ASSERT_EQ(PublishLong(1000), absl::OkStatus());
  ASSERT_EQ(store_->SetPinned(store_->List("default").at(0).id, "default", true).status(),
            absl::OkStatus());
  for (uint64_t seed = 0; seed < 20; ++seed) ASSERT_EQ(Publish(seed), absl::OkStatus());
  const absl::Status refused = PublishLong(1001);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("raise host_bytes"));
  EXPECT_EQ(store_->Stats().restore_points, 21u) << "evicting all of them would not be enough";
  EXPECT_EQ(Publish(1002), absl::OkStatus());
  ExpectWithinHostBytes();
}

TEST_F(StorePointsTest, PublishCountsSharedNodesOnce) {
  Open(256 << 10);
  const auto finds_of = [&](uint64_t seed) {
    const uint64_t before = IndexFinds(store_.get());
    EXPECT_EQ(PublishLong(seed), absl::OkStatus());
    return IndexFinds(store_.get()) - before;
  };
  const uint64_t with_room = finds_of(1000);
  EXPECT_EQ(store_->Stats().Of(Counter::kEvicted), 0u);
  for (uint64_t seed = 0; seed < 100; ++seed) ASSERT_EQ(Publish(seed), absl::OkStatus());
  const uint64_t evicted = store_->Stats().Of(Counter::kEvicted);
  const uint64_t with_evictions = finds_of(1001);
  EXPECT_GT(store_->Stats().Of(Counter::kEvicted), evicted);
  EXPECT_GE(with_evictions, with_room + kLongChunks) << "only an eviction makes it count again";
}

TEST_F(StorePointsTest, StartKeepsPointsAboveLimit) {
  Open(8 * kMiB);
  for (uint64_t seed = 0; seed < 200; ++seed) ASSERT_EQ(Publish(seed), absl::OkStatus());
  EXPECT_THAT(said_, IsEmpty());
  for (const int host_kib : {256, 128}) {
    const uint64_t host_bytes = uint64_t{1024} * static_cast<uint64_t>(host_kib);
    said_.clear();
    Open(host_bytes);
    EXPECT_EQ(store_->Stats().restore_points, 200u);
    EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr("of 200 restore points takes"),
                                         HasSubstr(absl::StrCat("its limit of ", host_bytes / 2)),
                                         HasSubstr("set --host-bytes"))));
    for (uint64_t seed = 0; seed < 200; seed += 20) EXPECT_TRUE(IsThere(seed));
    CheckInvariants(store_.get());
  }
  const uint64_t loaded_bytes = store_->Stats().point_bytes;
  for (uint64_t seed = 1000; seed < 1100; ++seed) {
    ASSERT_EQ(Publish(seed, seed % 2 == 0 ? Durability::kDisk : Durability::kMemory),
              absl::OkStatus());
    EXPECT_TRUE(IsThere(seed));
    EXPECT_LE(store_->Stats().point_bytes, loaded_bytes) << "memory does not grow";
  }
  EXPECT_GT(store_->Stats().restore_points, 180u) << "each evicts only for its own room";
  CheckInvariants(store_.get());
}

TEST_F(StorePointsTest, PointLimitWithoutRamFollowsDisk) {
  Open(0);
  for (uint64_t seed = 0; seed < 20; ++seed) ASSERT_EQ(Publish(seed), absl::OkStatus());
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.restore_points, 20u);
  EXPECT_EQ(stats.point_limit_bytes, 64 * kMiB);
  EXPECT_GT(stats.point_bytes, 20u * 500);
  options_.disk_bytes = uint64_t{200} << 30;
  EXPECT_EQ(options_.most_point_bytes(), 800 * kMiB);
}

}  // namespace
}  // namespace hearth
