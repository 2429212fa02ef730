// A volume that is smaller than the disk limit: the store keeps as much as fits, and publishes
// continue. If other programs fill the volume, nothing is evicted for some minutes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>

#include <filesystem>
#include <vector>

#include "absl/synchronization/notification.h"
#include "cache_store/disk/volume_budget.h"
#include "cache_store/store/background/volume_watch.h"
#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr uint64_t kVolumeBytes = 64 * kMiB;

// Waits until RocksDB's background threads have done their jobs. These threads free space, while
// the seconds of a fake clock pass at once. Each pool has one thread, which runs its jobs in order.
void AwaitRocksDb() {
  rocksdb::Env* const env = rocksdb::Env::Default();
  for (const rocksdb::Env::Priority pool : {rocksdb::Env::LOW, rocksdb::Env::HIGH}) {
    do {
      absl::Notification done;
      env->Schedule([](void* arg) { static_cast<absl::Notification*>(arg)->Notify(); }, &done,
                    pool);
      done.WaitForNotification();
    } while (env->GetThreadPoolQueueLen(pool) > 0);
  }
}

class StoreVolume : public FaultyDiskFixture, public ::testing::TestWithParam<uint32_t> {
 protected:
  StoreVolume() {
    KitModel geometry;
    geometry.head_dim = GetParam();
    geometry.layer_types = "llllg";
    model_ = geometry.Make();
    options_.disk_bytes = uint64_t{64} << 30;
    disk_.SetRoom(kVolumeBytes);
  }
  StoreSeams Seams() override {
    StoreSeams seams = FaultyDiskFixture::Seams();
    seams.disk.volume_bytes = volume_bytes_;
    return seams;
  }
  uint64_t Limit() { return store_->Stats().tiers.at(1).capacity_bytes; }
  uint64_t StoredBytes() { return store_->Stats().tiers.at(1).bytes; }
  void Upkeep(absl::Duration later = absl::Seconds(1)) {
    clock_.Advance(later);
    stepped()->UpkeepStep();
    executor_->RunAll();
  }
  // Publishes until about the fraction `share` of the limit is stored. Waits for RocksDB's flushes,
  // so that its logs stay below their limit: a flush writes a second copy of the logs' data.
  void Fill(double share) {
    for (seeds_ = 0; static_cast<double>(StoredBytes()) < share * static_cast<double>(Limit());) {
      const absl::Status published = Publish(++seeds_);
      ASSERT_TRUE(published.ok()) << published;
      executor_->RunAll();
      AwaitRocksDb();
    }
  }
  uint64_t CountServed() {
    uint64_t served = 0;
    for (uint64_t seed = 1; seed <= seeds_; ++seed) served += Fetch(seed) == 64 ? 1 : 0;
    return served;
  }

  // Publishes once a second until a publish is accepted, for up to a minute of the store's clock.
  // After an error, the database is reopened with compactions. A compaction can use the free space
  // for a moment, so the first publishes may be refused.
  absl::Status PublishWithinMinute(uint64_t seed) {
    absl::Status taken = Publish(seed);
    for (int second = 0; second < 60 && !taken.ok(); ++second) {
      Upkeep();
      taken = Publish(seed);
    }
    return taken;
  }

  // Creates a full volume without a saved budget, as a store that does not limit its files would
  // leave it, and opens a store on it.
  void OpenFull(uint64_t stored_bytes) {
    disk_.SetRoom(FaultyDisk::kAmple);
    Open();
    for (seeds_ = 0; StoredBytes() < stored_bytes;) ASSERT_TRUE(Publish(++seeds_).ok());
    ASSERT_TRUE(stepped()->core()->tiers.disk->WriteNote("volume", "").ok());
    store_.reset();
    disk_.SetRoom(0);
    Open();
  }
  // Publishes up to `bytes` in total. Returns the number of seconds in which publishes were
  // refused, at most `most`.
  int RefusedSeconds(uint64_t bytes, int most) {
    int seconds = 0;
    for (uint64_t seed = 1000; Counted("published_bytes") < bytes && seconds < most;) {
      const absl::Status taken = Publish(seed);
      taken.ok() ? ++seed : ++seconds;
      if (!taken.ok()) Upkeep();
    }
    return seconds;
  }

  uint64_t volume_bytes_ = kVolumeBytes;
  uint64_t seeds_ = 0;
};

TEST_P(StoreVolume, SmallVolumeLowersLimit) {
  Open();
  EXPECT_LT(Limit(), kVolumeBytes);
  EXPECT_GT(Limit(), kVolumeBytes / 2);
  EXPECT_THAT(lines_, Contains(HasSubstr("the limit is")));
}

TEST_P(StoreVolume, PublishesKeepTenthOfVolumeFree) {
  Open();
  const uint64_t bytes = 3 * kVolumeBytes;
  uint64_t published = 0;
  for (uint64_t seed = 1; published < bytes; ++seed) {
    const absl::Status taken = Publish(seed);
    ASSERT_TRUE(taken.ok()) << seed << ": " << taken;
    published = Counted("published_bytes");
    if (seed % 4 == 0) {
      Upkeep();
      AwaitRocksDb();
    }
    ASSERT_GT(disk_.room(), kVolumeBytes / 10) << seed;
    ASSERT_EQ(Fetch(seed), 64u);
  }
  CheckInvariants(store_.get());
}

TEST_P(StoreVolume, OtherProgramsFilesEvictNothing) {
  Open();
  Fill(0.6);
  for (const bool restarts : {false, true}) {
    disk_.SetRoom(0);
    if (restarts) Open();
    for (uint64_t i = 0; i < 8; ++i) {
      const absl::Status refused = Publish(1000 + i);
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      Upkeep(absl::Seconds(20));
      ASSERT_EQ(CountServed(), seeds_) << restarts << i;
    }
    disk_.SetRoom(kVolumeBytes / 4);
    const absl::Status taken = PublishWithinMinute(restarts ? 2001 : 2000);
    EXPECT_TRUE(taken.ok()) << taken;
    EXPECT_EQ(CountServed(), seeds_);
  }
  EXPECT_EQ(Counted("evicted_restore_points"), 0u);
}

// A full store evicts for each publish, but must not evict for a publish that is refused because
// the volume is full.
TEST_P(StoreVolume, PublishesRefusedForSpaceEvictNothing) {
  Open();
  Fill(0.97);
  disk_.SetRoom(0);
  EXPECT_FALSE(Publish(1000).ok());
  const uint64_t evicted = Counted("evicted_restore_points");
  for (uint64_t i = 0; i < 8; ++i) {
    const absl::Status refused = Publish(1000 + i);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("No space left"));
  }
  EXPECT_EQ(Counted("evicted_restore_points"), evicted);
}

TEST_P(StoreVolume, LongSpaceShortageLowersLimit) {
  Open();
  Fill(0.9);
  const uint64_t limit = Limit();
  disk_.SetRoom(0);
  EXPECT_FALSE(Publish(1000).ok());
  for (int minute = 0; minute < 7; ++minute) Upkeep(absl::Minutes(1));
  const absl::Status taken = PublishWithinMinute(1000);
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_LT(Limit(), limit);
  EXPECT_LE(StoredBytes(), Limit());
  EXPECT_GT(CountServed(), seeds_ / 4);
  CheckInvariants(store_.get());
}

// Other programs also took the reserved space. The disk then refuses erases, and evicting more
// would free nothing.
TEST_P(StoreVolume, FailedEraseStopsEviction) {
  Open();
  Fill(0.9);
  ASSERT_TRUE(std::filesystem::remove(folder_.File("reserve")));
  disk_.SetRoom(0);
  EXPECT_FALSE(Publish(1000).ok());
  for (int minute = 0; minute < 7; ++minute) {
    Upkeep(absl::Minutes(1));
    disk_.SetRoom(0);
  }
  const uint64_t served = CountServed();
  EXPECT_GT(served, seeds_ / 2);
  for (int second = 0; second < 60; ++second) {
    Upkeep();
    disk_.SetRoom(0);
  }
  EXPECT_GT(CountServed(), served / 2);
  disk_.SetRoom(kVolumeBytes / 4);
  const absl::Status taken = PublishWithinMinute(2000);
  EXPECT_TRUE(taken.ok()) << taken;
}

// The first start of a version that measures the volume: no budget was saved.
TEST_P(StoreVolume, FullVolumeAtFirstStartEvictsNothing) {
  Open();
  Fill(0.4);
  ASSERT_TRUE(stepped()->core()->tiers.disk->WriteNote("volume", "").ok());
  disk_.SetRoom(0);
  Open();
  for (int i = 0; i < 4; ++i) {
    Upkeep(absl::Minutes(1));
    ASSERT_EQ(CountServed(), seeds_) << i;
  }
  disk_.SetRoom(kVolumeBytes / 2);
  for (int i = 0; i < 3; ++i) Upkeep(absl::Minutes(1));
  EXPECT_LT(Limit(), kVolumeBytes);
  EXPECT_EQ(CountServed(), seeds_);
  EXPECT_EQ(Counted("evicted_restore_points"), 0u);
}

// If space returned between two short shortages, the second one does not continue the first.
TEST_P(StoreVolume, BriefSpaceShortagesEvictNothing) {
  options_.disk_bytes = 8 * kMiB;
  disk_.SetRoom(FaultyDisk::kAmple);
  Open();
  Fill(0.9);
  for (int i = 0; i < 3; ++i) {
    disk_.SetRoom(0);
    Upkeep(absl::Minutes(1));
    disk_.SetRoom(FaultyDisk::kAmple);
    Upkeep(absl::Minutes(10));
  }
  EXPECT_EQ(CountServed(), seeds_);
  EXPECT_EQ(Limit(), options_.disk_bytes);
}

// A tenth of the volume is normally free, but a publish larger than that still evicts.
TEST_P(StoreVolume, LargePublishEvictsOnFullVolume) {
  Open();
  Fill(0.97);
  stepped()->core()->lacks_room.store(true);
  EXPECT_TRUE(stepped()->core()->MayEvictForDisk(kVolumeBytes / 4));
  EXPECT_FALSE(stepped()->core()->lacks_room.load());
}

TEST_P(StoreVolume, RegainedSpaceIsReported) {
  Open();
  lines_.clear();
  disk_.SetRoom(FaultyDisk::kAmple);
  for (int i = 0; i < 3; ++i) Upkeep();
  EXPECT_THAT(lines_, Contains(HasSubstr("has space for --disk-bytes again")));
}

TEST(VolumeWatchTest, PauseGrowsWithMeasuringTime) {
  EXPECT_EQ(VolumeWatch::PauseAfter(absl::Milliseconds(1)), VolumeWatch::kEvery);
  EXPECT_EQ(VolumeWatch::PauseAfter(absl::Milliseconds(100)), absl::Seconds(20));
  EXPECT_EQ(VolumeWatch::PauseAfter(absl::Minutes(5)), absl::Minutes(30));
}

TEST_P(StoreVolume, PublishesResumeSoonOnVolumeFullOfEntries) {
  OpenFull(40 * kMiB);
  // Publish more than fits into the reserved space.
  EXPECT_LT(RefusedSeconds(6 * kMiB, 10), 10);
  EXPECT_GT(disk_.room(), kVolumeBytes / 20);
  // The limit, which was lowered to free space, rises again.
  for (int second = 0; second < 40; ++second) Upkeep();
  EXPECT_EQ(RefusedSeconds(18 * kMiB, 2), 0);
  EXPECT_GT(StoredBytes(), 10 * kMiB);
  CheckInvariants(store_.get());
}

// All records are in RocksDB's log, and writing them to a table needs space, so erases free nothing
// until few records are left.
TEST_P(StoreVolume, PublishesResumeSoonOnVolumeFullOfLog) {
  volume_bytes_ = 24 * kMiB;
  OpenFull(20 * kMiB);
  EXPECT_LT(RefusedSeconds(6 * kMiB, 10), 10);
  EXPECT_GT(disk_.room(), volume_bytes_ / 20);
  CheckInvariants(store_.get());
}

// If a publish took the last space, no erase could be written.
TEST_P(StoreVolume, ReserveSpaceIsOnlyForErases) {
  Open();
  Fill(0.5);
  DiskTier* disk = stepped()->core()->tiers.disk.get();
  disk_.SetRoom(0);
  disk->ReleaseReserve();
  const uint64_t room = disk_.room();
  for (uint64_t seed = 1000; seed < 1200; ++seed) {
    ASSERT_TRUE(absl::IsResourceExhausted(Publish(seed)));
  }
  EXPECT_GT(disk_.room(), room / 2);
  EXPECT_EQ(CountServed(), seeds_);
}

// The reserve file was deleted, and reclaims kept failing until the volume had space anyway.
TEST_P(StoreVolume, FailedReclaimIsRepeatedUntilSuccess) {
  options_.disk_bytes = 48 * kMiB;
  OpenFull(40 * kMiB);
  DiskTier* disk = stepped()->core()->tiers.disk.get();
  disk_.SetShare(DiskFault::kFailedWrite, 1000);
  for (int second = 0; second < 10 && disk->MayAdd().ok(); ++second) Upkeep();
  ASSERT_TRUE(absl::IsResourceExhausted(disk->MayAdd()));
  disk_.SetRoom(FaultyDisk::kAmple);
  for (int second = 0; second < 10; ++second) Upkeep();
  ASSERT_EQ(Limit(), options_.disk_bytes);
  ASSERT_TRUE(absl::IsResourceExhausted(disk->MayAdd()));
  disk_.SetShare(DiskFault::kFailedWrite, 0);
  for (int second = 0; second < 5; ++second) Upkeep();
  const absl::Status taken = Publish(2000);
  EXPECT_TRUE(taken.ok()) << taken;
}

INSTANTIATE_TEST_SUITE_P(Slices, StoreVolume, ::testing::Values(64u, 1024u),
                         [](const auto& info) { return info.param > 64 ? "Large" : "Small"; });

}  // namespace
}  // namespace hearth
