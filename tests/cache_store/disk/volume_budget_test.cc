#include "cache_store/disk/volume_budget.h"

#include <gtest/gtest.h>
#include <rocksdb/file_system.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "cache_store/disk/disk_tier_db.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

class VolumeBudgetTest : public ::testing::Test {
 protected:
  void Begin(uint64_t own_bytes, uint64_t free_bytes, uint64_t noted_bytes = 0) {
    budget_.Begin(noted_bytes, DiskRoom{own_bytes, free_bytes});
  }
  // Advances the clock by `later`, and updates the budget with the volume's bytes.
  void Update(uint64_t own_bytes, uint64_t free_bytes, absl::Duration later = absl::Seconds(1)) {
    now_ += later;
    budget_.Update({own_bytes, free_bytes}, now_);
  }

  VolumeBudget budget_{64 * kGiB};
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

TEST_F(VolumeBudgetTest, LargeVolumeKeepsRequestedLimit) {
  Begin(0, 100 * kGiB);
  EXPECT_EQ(budget_.limit_bytes(), 64 * kGiB);
  EXPECT_FALSE(budget_.is_limited());
  EXPECT_TRUE(budget_.IsAmple(200 * kGiB));
  EXPECT_FALSE(budget_.IsAmple(kGiB));
}

TEST_F(VolumeBudgetTest, SmallVolumeKeepsTenthFree) {
  for (const uint64_t mib : {1u, 16u, 64u, 256u, 1024u, 65536u}) {
    VolumeBudget budget(64 * kGiB);
    budget.Begin(0, DiskRoom{0, mib * kMiB});
    EXPECT_TRUE(budget.is_limited()) << mib;
    EXPECT_EQ(budget.files_bytes(), mib * kMiB - mib * kMiB / 10);
    EXPECT_LT(budget.limit_bytes(), budget.files_bytes());
    EXPECT_GT(budget.limit_bytes(), mib < 64 ? 0 : budget.files_bytes() / 2) << mib;
  }
}

TEST_F(VolumeBudgetTest, GrowthOfOwnFilesKeepsLimit) {
  Begin(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  Update(200 * kMiB, 56 * kMiB, VolumeBudget::kPatience);
  EXPECT_EQ(budget_.limit_bytes(), limit);
}

TEST_F(VolumeBudgetTest, LostSpaceLowersLimitAfterDelay) {
  Begin(0, 256 * kMiB);
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

TEST_F(VolumeBudgetTest, RegainedSpaceRestartsDelay) {
  Begin(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  for (int i = 0; i < 4; ++i) {
    Update(64 * kMiB, 0, absl::Minutes(3));
    Update(64 * kMiB, 192 * kMiB, absl::Minutes(3));
    EXPECT_EQ(budget_.limit_bytes(), limit);
  }
}

TEST_F(VolumeBudgetTest, RaisingBudgetNeedsTwoMeasurements) {
  Begin(0, 64 * kMiB);
  Update(0, 64 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  Update(0, 256 * kMiB);
  EXPECT_EQ(budget_.limit_bytes(), limit);
  Update(0, 256 * kMiB);
  EXPECT_GT(budget_.limit_bytes(), limit);
}

TEST_F(VolumeBudgetTest, SavedBudgetSurvivesFullVolume) {
  Begin(100 * kMiB, 0, 230 * kMiB);
  Update(100 * kMiB, 0);
  EXPECT_EQ(budget_.files_bytes(), 230 * kMiB);
}

// The first measurement counts at once, because the first limit decides which restore points are
// evicted while the index is loaded.
TEST_F(VolumeBudgetTest, StartUsesGainedSpaceImmediately) {
  Begin(100 * kMiB, 156 * kMiB, 215 * kMiB);
  EXPECT_EQ(budget_.files_bytes(), 256 * kMiB - 256 * kMiB / 10);
}

TEST_F(VolumeBudgetTest, RaisedRequestedLimitIsMetInFull) {
  VolumeBudget before(10 * kGiB);
  before.Begin(0, DiskRoom{0, 2000 * kGiB});
  Begin(10 * kGiB, 1990 * kGiB, before.files_bytes());
  EXPECT_FALSE(budget_.is_limited());
}

// The folder is from an older version, which saved no budget.
TEST_F(VolumeBudgetTest, FullVolumeWithoutSavedBudgetWaits) {
  budget_.Begin(0, DiskRoom{60 * kMiB, 0, 256 * kMiB});
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(budget_.is_limited());
    Update(60 * kMiB, 0, absl::Minutes(1));
  }
  Update(60 * kMiB, 0, absl::Minutes(1));
  EXPECT_TRUE(budget_.is_limited());
}

TEST_F(VolumeBudgetTest, VolumeFullOfOwnFilesLowersBudget) {
  budget_.Begin(0, DiskRoom{250 * kMiB, 0, 256 * kMiB});
  EXPECT_EQ(budget_.files_bytes(), 225 * kMiB);
}

// The saved budget is larger than the volume, as after restoring a backup to a smaller volume.
// Nothing must be evicted for the new budget.
TEST_F(VolumeBudgetTest, SmallerVolumeLowersBudgetAtOnce) {
  budget_.Begin(64 * kGiB, DiskRoom{100 * kMiB, 156 * kMiB, 256 * kMiB});
  EXPECT_EQ(budget_.files_bytes(), 256 * kMiB - 256 * kMiB / 10);
}

TEST_F(VolumeBudgetTest, OtherProgramsFilesKeepSavedBudget) {
  budget_.Begin(230 * kMiB, DiskRoom{50 * kMiB, 60 * kMiB, 256 * kMiB});
  EXPECT_EQ(budget_.files_bytes(), 230 * kMiB);
}

TEST_F(VolumeBudgetTest, UnmeasurableVolumeKeepsSavedBudget) {
  budget_.Begin(230 * kMiB, std::nullopt);
  EXPECT_EQ(budget_.files_bytes(), 230 * kMiB);
}

// A snapshot of the volume keeps erased bytes, so that erasing more frees no space.
TEST_F(VolumeBudgetTest, LoweringStopsIfNoSpaceIsFreed) {
  Begin(150 * kMiB, 106 * kMiB);
  uint64_t own = 200 * kMiB;
  for (int minute = 0; minute < 600; ++minute) {
    Update(own, 0, absl::Minutes(1));
    own = std::min(own, budget_.files_bytes());
  }
  EXPECT_TRUE(budget_.is_stuck());
  EXPECT_GT(budget_.files_bytes(), 150 * kMiB);
  Update(own, 100 * kMiB);
  Update(own, 100 * kMiB);
  EXPECT_FALSE(budget_.is_stuck());
}

TEST_F(VolumeBudgetTest, LoweringRepeatsIfSpaceIsFreed) {
  Begin(150 * kMiB, 106 * kMiB);
  for (int minute = 0; minute < 7; ++minute) Update(200 * kMiB, 0, absl::Minutes(1));
  const uint64_t first = budget_.files_bytes();
  Update(first, 200 * kMiB - first);
  for (int minute = 0; minute < 7; ++minute) Update(first, 0, absl::Minutes(1));
  EXPECT_LT(budget_.files_bytes(), first);
}

TEST_F(VolumeBudgetTest, SqueezeLowersLimitAndRelaxRestores) {
  Begin(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  budget_.Squeeze(10 * kMiB);
  EXPECT_EQ(budget_.limit_bytes(), limit - 10 * kMiB);
  budget_.Squeeze(kGiB);
  EXPECT_GT(budget_.limit_bytes(), 0u);
  for (int i = 0; i < 400; ++i) budget_.Relax();
  EXPECT_EQ(budget_.limit_bytes(), limit);
}

TEST_F(VolumeBudgetTest, ClockSetBackRestartsDelay) {
  Begin(0, 256 * kMiB);
  const uint64_t limit = budget_.limit_bytes();
  Update(64 * kMiB, 0);
  Update(64 * kMiB, 0, -absl::Hours(2));
  Update(64 * kMiB, 0, absl::Minutes(4));
  EXPECT_EQ(budget_.limit_bytes(), limit);
}

class DiskRoomTest : public ::testing::Test {
 protected:
  ~DiskRoomTest() override { ::setfsuid(::geteuid()); }
  std::optional<DiskRoom> Measure(const std::string& dir) {
    return MeasureRoom(rocksdb::FileSystem::Default().get(), dir);
  }
  void MakeFiles(const std::string& folder, int count) {
    ASSERT_EQ(::mkdir(folder_.File(folder).c_str(), 0755), 0);
    for (int i = 0; i < count; ++i) {
      folder_.Write(folder + "/" + std::to_string(i), std::string(kMiB, 'x'));
    }
  }

  const TestFolder folder_;
};

// The folder is like `lost+found` at the root of an ext4 volume, which only root may list.
TEST_F(DiskRoomTest, UnlistableFolderIsSkipped) {
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  MakeFiles("a", 3);
  MakeFiles("lost+found", 3);
  MakeFiles("z", 3);
  ASSERT_EQ(::chmod(folder_.File("lost+found").c_str(), 0), 0);
  if (::geteuid() == 0) ::setfsuid(65534);  // gives up root's access to files in this thread
  const std::optional<DiskRoom> room = Measure(folder_.path());
  ASSERT_TRUE(room.has_value());
  EXPECT_GE(room->own_bytes, 6 * kMiB);
  EXPECT_LT(room->own_bytes, 7 * kMiB);
  EXPECT_GT(room->volume_bytes, room->free_bytes);
  ::setfsuid(::geteuid());
  ::chmod(folder_.File("lost+found").c_str(), 0755);
}

TEST_F(DiskRoomTest, MissingFolderPreventsMeasurement) {
  EXPECT_FALSE(Measure(folder_.File("nothing")).has_value());
}

}  // namespace
}  // namespace hearth
