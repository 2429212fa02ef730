// A disk that fails temporarily: when it works again, acknowledged restore points are served and
// publishes succeed, without a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/disk/point_count.h"
#include "cache_store/disk/verify.h"
#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

struct Failing {
  const char* name;
  DiskFault fault;
  int per_mille;
  uint32_t head_dim;  // 1,024: slices are written as tables; 2: through the log
};
constexpr Failing kFailing[] = {
    {"FolderSyncsOfTables", DiskFault::kFailedFolderSync, 1000, 1024},
    {"FolderSyncs", DiskFault::kFailedFolderSync, 1000, 2},
    {"FileSyncsOfTables", DiskFault::kFailedSync, 1000, 1024},
    {"WritesOfTables", DiskFault::kFailedWrite, 1000, 1024},
    {"Writes", DiskFault::kFailedWrite, 1000, 2},
    {"HalfOfTheWritesOfTables", DiskFault::kShortWrite, 500, 1024},
    {"HalfOfTheWrites", DiskFault::kShortWrite, 500, 2},
    {"ReadsOfTables", DiskFault::kFailedRead, 1000, 1024},
    {"Reads", DiskFault::kFailedRead, 1000, 2},
    {"OneReadOfTwentyOfTables", DiskFault::kFailedRead, 50, 1024},
    {"OneReadOfTwenty", DiskFault::kFailedRead, 50, 2},
    {"OneBitInOneReadOfFiftyOfTables", DiskFault::kFlippedBit, 20, 1024},
    {"OneBitInOneReadOfFifty", DiskFault::kFlippedBit, 20, 2},
};

class FailingDisk : public FaultyDiskFixture, public ::testing::TestWithParam<Failing> {
 protected:
  FailingDisk() {
    KitModel geometry;
    geometry.head_dim = GetParam().head_dim;
    model_ = geometry.Make();
  }
  // Publishes a prompt, and remembers it if it was acknowledged.
  absl::Status Publish(Durability durability) {
    const uint64_t seed = ++seed_;
    absl::Status status = FaultyDiskFixture::Publish(seed, durability);
    if (status.ok()) acknowledged_.push_back(seed);
    return status;
  }
  uint32_t Fetch(uint64_t seed) {
    const absl::StatusOr<uint32_t> fetched = KitFetch(store_.get(), model_, Prompt(seed));
    return fetched.ok() ? *fetched : 0;
  }
  void ExpectAllThere() {
    for (const uint64_t seed : acknowledged_) EXPECT_EQ(Fetch(seed), 64u) << seed;
  }

  uint64_t seed_ = 0;
  std::vector<uint64_t> acknowledged_;
};

TEST_P(FailingDisk, RecoveredDiskServesAcknowledgedPoints) {
  Open();
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(Publish(i % 2 == 0 ? Durability::kDisk : Durability::kSync).ok());
  }
  // Drop a prompt: the drop causes a flush, so the restore points are then read from files, not
  // from memory.
  ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(1000), {32}).ok());
  for (const RestorePoint& point : store_->List("default")) {
    if (point.tokens != 32) continue;
    ASSERT_TRUE(store_->Drop(point.id, "default", true).ok());
  }
  for (int round = 0; round < 3; ++round) {
    disk_.SetShare(GetParam().fault, GetParam().per_mille);
    for (int i = 0; i < 8; ++i) {
      Publish(i % 2 == 0 ? Durability::kDisk : Durability::kSync).IgnoreError();
      for (const uint64_t seed : acknowledged_) Fetch(seed);
      clock_.Advance(absl::Seconds(1));
      stepped()->ScrubStep();
      executor_->RunAll();
    }
    disk_.SetShare(GetParam().fault, 0);
    const absl::Status taken = Publish(Durability::kSync);
    EXPECT_TRUE(taken.ok()) << taken;
    for (int i = 0; i < 40; ++i) {
      clock_.Advance(absl::Seconds(1));
      stepped()->ScrubStep();
    }
    ExpectAllThere();
    CheckInvariants(store_.get());
  }
  EXPECT_GT(disk_.struck(), 0);
  EXPECT_EQ(Counted("quarantined_objects"), 0u);
  Open();
  ExpectAllThere();
}

// Fixture of tests in which slices are written through the log.
class FailedWrites : public FaultyDiskFixture, public ::testing::Test {
 protected:
  // Closes the store, and expects that its folder can be verified and backed up.
  void ExpectWholeFolder() {
    store_.reset();
    const VerifyReport verified = VerifyDataDir(folder_.path()).value();
    EXPECT_TRUE(verified.ok()) << verified.problems[0];
    const TestFolder to;
    const absl::Status backed_up = BackUpDataDir(folder_.path(), to.File("backup")).status();
    EXPECT_TRUE(backed_up.ok()) << backed_up;
  }
};

// A write that fails halfway leaves a part of a record in the log, and RocksDB writes the next
// records after it.
TEST_F(FailedWrites, TornLogAfterWriteErrorIsNotDamage) {
  std::vector<uint64_t> acknowledged;
  const auto publish = [&](uint64_t seed) {
    const absl::Status status = Publish(seed);
    if (status.ok()) acknowledged.push_back(seed);
    return status;
  };
  Open();
  for (int nth = 1; nth <= 12; ++nth) {
    disk_.Arm(DiskFault::kShortWrite, nth);
    for (uint64_t i = 0; i < 4; ++i) publish(100 * nth + i).IgnoreError();
    disk_.Disarm();
    const absl::Status taken = publish(100 * nth + 50);
    ASSERT_TRUE(taken.ok()) << nth << ": " << taken;
  }
  disk_.Arm(DiskFault::kShortWrite, 1);
  EXPECT_FALSE(publish(1).ok());
  ExpectWholeFolder();
  Open();
  EXPECT_EQ(Counted("recovery_damage"), 0u);
  for (const uint64_t seed : acknowledged) EXPECT_EQ(Fetch(seed), 64u) << seed;
}

// A kill -9 during a write leaves a part of a record at the end of the log.
TEST_F(FailedWrites, UnfinishedLogRecordIsNotDamage) {
  for (const uint64_t seed : {1, 2}) {
    Open();
    ASSERT_TRUE(Publish(seed).ok());
    store_.reset();
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/db")) {
      if (entry.path().extension() != ".log") continue;
      // Append a record whose header says 1,000 bytes, but only 100 bytes of it.
      std::ofstream(entry.path(), std::ios::app | std::ios::binary)
          << std::string("sums\xE8\x03\x01", 7) << std::string(100, 'x');
    }
    ExpectWholeFolder();
  }
  Open();
  EXPECT_EQ(Counted("recovery_damage"), 0u);
  for (const uint64_t seed : {1, 2}) EXPECT_EQ(Fetch(seed), 64u);
}

// A start compares the restore points that it finds with this count to notice losses.
TEST(PointCountTest, RepeatedWritesCountOnce) {
  const TestFolder folder;
  FaultyDisk disk;
  DiskTierOptions options;
  options.env = disk.env();
  const auto tier = DiskTier::Open(folder.path(), "secret", options).value();
  const FingerprintRecord fingerprint{KitModel().Make(), "default"};
  const auto commit = [&](uint64_t number, uint64_t replaced = 0) {
    ManifestRecord record;
    record.number = number;
    record.replaced = replaced;
    record.tenant = fingerprint.tenant;
    record.manifest.fingerprint = fingerprint.fingerprint.digest();
    return tier->CommitManifests({record}, fingerprint, false);
  };
  const auto counted = [&] { return PointCount::Read(folder.path()).points; };
  for (const uint64_t number : {1, 2, 3, 3}) ASSERT_TRUE(commit(number).ok());
  EXPECT_EQ(counted(), 3u);
  for (int thread = 0; thread < 2; ++thread) ASSERT_TRUE(tier->EraseManifests({{1, 2}}).ok());
  EXPECT_EQ(counted(), 1u);
  disk.Arm(DiskFault::kFailedWrite, 1);
  EXPECT_FALSE(commit(4).ok());
  ASSERT_TRUE(tier->EraseManifests({{4}}).ok());
  EXPECT_EQ(counted(), 1u);
  disk.Arm(DiskFault::kFailedWrite, 1);
  EXPECT_FALSE(tier->EraseManifests({{3}}).ok());
  EXPECT_EQ(counted(), 1u);
  // A restore point with two manifests counts once, whichever manifest survives a crash.
  ASSERT_TRUE(commit(5, /*replaced=*/3).ok());
  EXPECT_EQ(counted(), 1u);
  ASSERT_TRUE(tier->EraseManifests({{3}}).ok());
  EXPECT_EQ(counted(), 1u);
}

// The kernel writes a part of the file if the file may not grow further.
TEST(PointCountTest, ShortWriteIsAnError) {
  const TestFolder folder;
  const auto count = PointCount::Open(folder.path()).value();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit half{16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &half), 0);
  errno = 0;
  const absl::Status noted = count->NoteDrops(1);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(noted.code(), absl::StatusCode::kResourceExhausted) << noted;
  EXPECT_TRUE(count->NoteDrops(1).ok());
  EXPECT_EQ(PointCount::Read(folder.path()).drops, 1u);
}

class DamagedInUse : public FaultyDiskFixture, public ::testing::Test {
 protected:
  void Open(uint64_t host_bytes) {
    options_.host_bytes = host_bytes;
    options_.count_points = false;
    FaultyDiskFixture::Open();
  }
  std::filesystem::path Only(const char* part) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/db")) {
      if (absl::StrContains(entry.path().filename().string(), part)) return entry.path();
    }
    return {};
  }
};

TEST_F(DamagedInUse, RestartRepairsDatabaseDamagedInUse) {
  Open(4 << 20);
  for (const uint64_t seed : {1, 2, 3}) ASSERT_TRUE(Publish(seed).ok());
  std::filesystem::resize_file(Only("MANIFEST-"), 0);
  disk_.Arm(DiskFault::kFailedWrite, 1);
  EXPECT_FALSE(Publish(4).ok());
  const absl::Status refused = Publish(4);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("start the store: it repairs"));
  EXPECT_EQ(Fetch(1), 64u) << "from memory";
  Open(4 << 20);
  EXPECT_THAT(lines_, testing::Contains(testing::HasSubstr("it was moved to")));
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 3u);
  EXPECT_TRUE(Publish(4).ok());
}

TEST_F(DamagedInUse, ScrubRewritesLostLogRecords) {
  Open(4 << 20);
  for (const uint64_t seed : {1, 2, 3}) ASSERT_TRUE(Publish(seed).ok());
  // Run steps of the scrub until the next pass is days away.
  absl::Duration pause;
  while (pause < absl::Hours(1)) clock_.Advance(pause = stepped()->ScrubStep());
  clock_.Advance(-pause);
  {
    std::fstream log(Only(".log"), std::ios::in | std::ios::out | std::ios::binary);
    log.seekp(static_cast<std::streamoff>(std::filesystem::file_size(Only(".log")) / 4));
    log.write("damage", 6);
  }
  disk_.Arm(DiskFault::kFailedWrite, 1);
  EXPECT_FALSE(Publish(4).ok());
  // The first publish may fail: the damage may be a misread, so it is read again before it counts.
  absl::Status taken = Publish(4);
  for (int i = 0; i < 2 && absl::IsDataLoss(taken); ++i) taken = Publish(4);
  EXPECT_TRUE(taken.ok()) << taken;
  EXPECT_THAT(lines_, testing::Contains(testing::HasSubstr("restore points are lost")));
  for (int i = 0; i < 10; ++i) ScrubForAWhile(store_.get(), &clock_);
  executor_->RunAll();
  Open(0);
  for (const uint64_t seed : {1, 2, 3, 4}) EXPECT_EQ(Fetch(seed), 64u) << seed;
}

INSTANTIATE_TEST_SUITE_P(Faults, FailingDisk, ::testing::ValuesIn(kFailing),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth
