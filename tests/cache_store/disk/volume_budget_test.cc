#include "cache_store/disk/volume_budget.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

class VolumeBudgetTest : public ::testing::Test {
 protected:
  // With the volume's room, after a time.
  void Update(uint64_t own_bytes, uint64_t free_bytes, absl::Duration later = absl::Seconds(1)) {
    now_ += later;
    budget_.Update({own_bytes, free_bytes}, now_);
  }

  VolumeBudget budget_{64 * kGiB};
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(VolumeBudgetTest, LargeVolumeKeepsTheLimit) {
  Update(0, 100 * kGiB);
  EXPECT_EQ(budget_.limit_bytes(), 64 * kGiB);
  EXPECT_FALSE(budget_.is_limited());
  EXPECT_TRUE(budget_.IsAmple(200 * kGiB));
  EXPECT_FALSE(budget_.IsAmple(kGiB));
}

TEST_F(VolumeBudgetTest, SmallVolumeLeavesATenth) {
  for (const uint64_t mib : {1u, 16u, 64u, 256u, 1024u, 65536u}) {
    VolumeBudget budget(64 * kGiB);
    budget.Update({0, mib * kMiB}, now_);
    EXPECT_TRUE(budget.is_limited()) << mib;
    EXPECT_EQ(budget.files_bytes(), mib * kMiB - mib * kMiB / 10);
    EXPECT_LT(budget.limit_bytes(), budget.files_bytes());
    EXPECT_GT(budget.limit_bytes(), mib < 64 ? 0 : budget.files_bytes() / 2) << mib;
  }
}

TEST_F(VolumeBudgetTest, OwnFilesCountAsRoom) {
  Update(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  Update(200 * kMiB, 56 * kMiB, VolumeBudget::kPatience);
  EXPECT_EQ(budget_.limit_bytes(), limit);
}

TEST_F(VolumeBudgetTest, LessRoomCountsAfterPatience) {
  Update(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  for (int i = 0; i < 4; ++i) {
    Update(64 * kMiB, i * kMiB, absl::Minutes(1));
    EXPECT_EQ(budget_.limit_bytes(), limit);
  }
  Update(64 * kMiB, 0, absl::Minutes(1));
  Update(64 * kMiB, 0, absl::Minutes(1));
  EXPECT_LT(budget_.limit_bytes(), limit);
  EXPECT_EQ(budget_.files_bytes(), 67 * kMiB - 67 * kMiB / 10) << "the most room of that time";
}

TEST_F(VolumeBudgetTest, RoomThatComesBackEndsTheWait) {
  Update(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  for (int i = 0; i < 4; ++i) {
    Update(64 * kMiB, 0, absl::Minutes(3));
    Update(64 * kMiB, 192 * kMiB, absl::Minutes(3));
    EXPECT_EQ(budget_.limit_bytes(), limit);
  }
}

TEST_F(VolumeBudgetTest, MoreRoomCountsWhenSeenTwice) {
  Update(0, 64 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  Update(0, 256 * kMiB);
  EXPECT_EQ(budget_.limit_bytes(), limit);
  Update(0, 256 * kMiB);
  EXPECT_GT(budget_.limit_bytes(), limit);
}

TEST_F(VolumeBudgetTest, StartOnFullVolumeKeepsTheNotedBudget) {
  budget_.Restore(230 * kMiB);
  Update(20 * kMiB, 0);
  EXPECT_EQ(budget_.files_bytes(), 230 * kMiB);
}

TEST_F(VolumeBudgetTest, SqueezeLowersAndRelaxUndoes) {
  Update(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  budget_.Squeeze(10 * kMiB);
  EXPECT_EQ(budget_.limit_bytes(), limit - 10 * kMiB);
  budget_.Squeeze(kGiB);
  EXPECT_GT(budget_.limit_bytes(), 0u);
  for (int i = 0; i < 400; ++i) budget_.Relax();
  EXPECT_EQ(budget_.limit_bytes(), limit);
}

TEST_F(VolumeBudgetTest, ClockSetBackWaitsAnew) {
  Update(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  Update(64 * kMiB, 0);
  Update(64 * kMiB, 0, -absl::Hours(2));
  Update(64 * kMiB, 0, absl::Minutes(4));
  EXPECT_EQ(budget_.limit_bytes(), limit);
}

}  // namespace
}  // namespace hearth
