// A disk that becomes full or fails: stored restore points are served, and publishes are refused.
// When the disk has space again, publishes succeed without a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

class FullDisk : public FaultyDiskFixture, public ::testing::TestWithParam<uint32_t> {
 protected:
  FullDisk() {
    KitModel geometry;
    geometry.head_dim = GetParam();
    model_ = geometry.Make();
  }
  // Drops the restore point with this number of tokens.
  absl::Status Drop(uint32_t tokens) {
    for (const RestorePoint& point : store_->List("default")) {
      if (point.tokens == tokens) return store_->Drop(point.id, "default", true).status();
    }
    return absl::NotFoundError("no such point");
  }
};

TEST_P(FullDisk, PublishesResumeWhenSpaceIsFreed) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  for (int round = 0; round < 3; ++round) {
    disk_.SetFull(true);
    for (int i = 0; i < 3; ++i) {
      const absl::Status refused = Publish(2 + round);
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("No space left"));
      EXPECT_EQ(Fetch(1), 64u);
      EXPECT_EQ(Fetch(2 + round), 0u);
      executor_->RunAll();
    }
    CheckInvariants(store_.get());
    disk_.SetFull(false);
    const absl::Status taken = Publish(2 + round);
    EXPECT_TRUE(taken.ok()) << taken;
    EXPECT_EQ(Fetch(2 + round), 64u);
  }
  Open();
  for (const uint64_t seed : {1, 2, 3, 4}) EXPECT_EQ(Fetch(seed), 64u);
}

TEST_P(FullDisk, RestartAfterFullDiskKeepsAcknowledgedPoints) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  disk_.SetFull(true);
  EXPECT_FALSE(Publish(2).ok());
  store_.reset();
  disk_.SetFull(false);
  Open();
  EXPECT_EQ(Fetch(1), 64u);
  EXPECT_EQ(Fetch(2), 0u);
  EXPECT_TRUE(Publish(2).ok());
}

TEST_P(FullDisk, PublishSucceedsAfterFailedWrite) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  for (const DiskFault fault : {DiskFault::kFailedWrite, DiskFault::kShortWrite}) {
    disk_.Arm(fault, 1);
    const absl::Status failed = Publish(2);
    EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
    EXPECT_EQ(Fetch(1), 64u);
    EXPECT_EQ(Fetch(2), 0u);
    const absl::Status taken = Publish(2);
    EXPECT_TRUE(taken.ok()) << taken;
    Open();
    EXPECT_TRUE(Fetch(1) == 64 && Fetch(2) == 64);
    ASSERT_TRUE(store_->DropAll("default", true).ok());
    ASSERT_TRUE(Publish(1).ok());
  }
}

// The crash of the machine loses all data that was not synced.
TEST_P(FullDisk, ReserveFileSurvivesMachineCrash) {
  Open();
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(1), {64}, Durability::kSync).ok());
  Crash(/*machine=*/true);
  disk_.SetRoom(0);
  Open();
  EXPECT_EQ(Fetch(1), 64u);
}

// An acknowledged `sync` must also sync data that an earlier process left in the page cache;
// RocksDB syncs only its own writes.
TEST_P(FullDisk, SyncedPublishSurvivesTwoCrashes) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  Crash(/*machine=*/false);
  Open();
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(2), {64}, Durability::kSync).ok());
  Crash(/*machine=*/true);
  Open();
  EXPECT_EQ(Fetch(1), 64u);
  EXPECT_EQ(Fetch(2), 64u);
}

TEST_P(FullDisk, UsedReserveFileIsCreatedAgain) {
  Open();
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(1), {64}, Durability::kSync).ok());
  store_.reset();
  disk_.SetRoom(0);
  Open();
  disk_.SetRoom(FaultyDisk::kAmple);
  ASSERT_TRUE(Publish(2).ok());
  Crash(/*machine=*/true);
  disk_.SetRoom(0);
  Open();
  EXPECT_EQ(Fetch(1), 64u);
}

// On a nearly full disk, the reserve file does not take the space of small writes, and small writes
// do not prevent that it is created later.
TEST_P(FullDisk, ReserveFileWaitsForAmpleFreeSpace) {
  Open();
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(1), {64}, Durability::kSync).ok());
  const Digest id = store_->List("default").at(0).id;
  store_.reset();
  disk_.SetRoom(0);
  Open();
  disk_.SetRoom(uint64_t{4} << 20);
  for (int i = 0; i < 300; ++i) {
    const auto pinned = store_->SetPinned(id, "default", i % 2 == 0);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
  }
  EXPECT_GT(disk_.room(), uint64_t{3} << 20);
  disk_.SetRoom(FaultyDisk::kAmple);
  ASSERT_TRUE(Publish(2).ok());
  Crash(/*machine=*/true);
  disk_.SetRoom(0);
  Open();
  EXPECT_EQ(Fetch(1), 64u);
}

TEST_P(FullDisk, ReserveFileIsSyncedAfterFailedSync) {
  Open();
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(1), {64}, Durability::kSync).ok());
  for (int nth = 1; nth <= 12; ++nth) {
    store_.reset();
    disk_.SetRoom(0);
    disk_.Arm(DiskFault::kFailedSync,
              nth);  // the nth sync fails: of the file, of its folder, or at the end of the start
    const bool opened = TryOpen().ok();
    disk_.Disarm();
    if (!opened) Open();
    disk_.SetRoom(FaultyDisk::kAmple);
    for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(Publish(100 * nth + i).ok());
    Crash(/*machine=*/true, nth);
    disk_.SetRoom(0);
    Open();
    EXPECT_EQ(Fetch(1), 64u) << nth;
    disk_.SetRoom(FaultyDisk::kAmple);
  }
}

// If erasing a manifest fails, the manifest's objects must not be erased.
TEST_P(FullDisk, ManifestsAreErasedBeforeTheirObjects) {
  Open();
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(1), {16, 32}).ok());
  disk_.SetFull(true);
  EXPECT_FALSE(Drop(16).ok());
  disk_.SetFull(false);
  EXPECT_TRUE(Drop(32).ok());
  Crash(/*machine=*/false);
  Open();
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u);
  EXPECT_TRUE(store_->List("default").empty());
}

TEST_P(FullDisk, DropOnFullDiskSurvivesRestart) {
  for (const bool publishes_after : {true, false}) {
    Open();
    ASSERT_TRUE(Publish(1).ok());
    disk_.SetFull(true);
    EXPECT_FALSE(Drop(64).ok());
    disk_.SetFull(false);
    if (publishes_after) {
      ASSERT_TRUE(Publish(2).ok());
    }
    Open();
    EXPECT_EQ(Fetch(1), 0u);
    EXPECT_EQ(store_->List("default").size(), publishes_after ? 1u : 0u);
    EXPECT_EQ(Counted("recovery_collected_objects"), 0u);
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
}

TEST_P(FullDisk, FailedPinLeavesPointUnpinned) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  WatchFrom from;
  from.snapshot = false;
  from.incarnation = store_->Stats().incarnation;
  const auto ignore = [](const StoreEvent&) {};
  from.sequence = store_->Subscribe("default", from, ignore).sequence;
  const RestorePoint point = store_->List("default").at(0);
  disk_.SetFull(true);
  EXPECT_FALSE(store_->SetPinned(point.id, "default", true).ok());
  EXPECT_FALSE(store_->List("default").at(0).pinned);
  bool told = false;
  for (const StoreEvent& event : store_->Subscribe("default", from, ignore).missed) {
    told = event.restore_point.pinned;
  }
  EXPECT_FALSE(told) << "whoever follows the events believes that it is pinned";
}

// The disk has space for a moment: the database is closed, and then cannot be opened.
TEST_P(FullDisk, ReadsContinueAfterFailedReopen) {
  Open();
  for (const uint64_t seed : {1, 2, 3}) ASSERT_TRUE(Publish(seed).ok());
  disk_.SetFull(true);
  EXPECT_FALSE(Publish(4).ok());
  for (int nth = 2; nth <= 8; ++nth) {
    disk_.SetFull(false);
    disk_.Arm(DiskFault::kFailedWrite, nth);  // the first write only tests whether the disk works
    Publish(4).IgnoreError();
    disk_.Disarm();
    disk_.SetFull(true);
    EXPECT_FALSE(Publish(5).ok());
    for (const uint64_t seed : {1, 2, 3}) {
      const absl::StatusOr<uint32_t> usable = KitFetch(store_.get(), model_, Prompt(seed));
      EXPECT_TRUE(usable.ok() && *usable == 64) << nth << ": " << usable.status();
    }
  }
  store_->BackUp(folder_.File("backup")).status().IgnoreError();
  executor_->RunAll();
  disk_.SetFull(false);
  EXPECT_TRUE(Publish(6).ok());
  for (const uint64_t seed : {1, 2, 3, 6}) EXPECT_EQ(Fetch(seed), 64u);
  EXPECT_EQ(Counted("quarantined_objects"), 0u);
}

// Other programs also took the space that was reserved for a start.
TEST_P(FullDisk, StartOnFullDiskServesReads) {
  Open();
  for (const uint64_t seed : {1, 2, 3}) ASSERT_TRUE(Publish(seed).ok());
  store_.reset();
  disk_.SetFull(true);
  Open();
  for (const uint64_t seed : {1, 2, 3}) EXPECT_EQ(Fetch(seed), 64u);
  const absl::Status refused = Publish(4);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  executor_->RunAll();
  for (const uint64_t seed : {1, 2, 3}) EXPECT_EQ(Fetch(seed), 64u);
  disk_.SetFull(false);
  EXPECT_TRUE(Publish(4).ok());
  Open();
  for (const uint64_t seed : {1, 2, 3, 4}) EXPECT_EQ(Fetch(seed), 64u);
  EXPECT_EQ(Counted("recovery_damage"), 0u);
}

// Values of head_dim: with 2, slices go through the log; with 1024, they are written as tables.
INSTANTIATE_TEST_SUITE_P(Slices, FullDisk, ::testing::Values(2u, 1024u),
                         [](const auto& info) { return info.param > 2 ? "Large" : "Small"; });

}  // namespace
}  // namespace hearth
