// Erased points stay gone even where the log lost the erase, as the file of promises names them.
// Points that were not erased come back with the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/verify.h"
#include "tests/cache_store/disk/log_ends_kit.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/raw_database.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ErasedPoints : public LogEnds {
 protected:
  // Of five points the first was erased; the log did not keep that.
  void LoseAnErase() {
    Open();
    Publish(1, 1);
    const Digest first = store_->List("default").at(0).id;
    Publish(2, 5);
    const LogSizes before = SizesOfLogs();
    ASSERT_TRUE(store_->Drop(first, "default", /*force=*/false).ok());
    Die();
    ASSERT_NE(SizesOfLogs(), before);
    CutLogsTo(before);
  }
  int64_t Said(const char* text) const {
    return std::count_if(lines_.begin(), lines_.end(),
                         [&](const std::string& line) { return absl::StrContains(line, text); });
  }
  const std::set<uint64_t> left_ = {2, 3, 4, 5};
};

TEST_F(ErasedPoints, StayGoneWhereTheLogLostTheErase) {
  LoseAnErase();
  for (int life = 0; life < 2; ++life) {
    lines_.clear();
    Open();
    EXPECT_EQ(There(1, 5), left_);
    EXPECT_EQ(store_->List("default").size(), 4u);
    EXPECT_EQ(Counted("recovery_damage"), 0u);
    EXPECT_EQ(Said("1 restore points that were erased are in the database again"),
              life == 0 ? 1 : 0);
    Die();
  }
}

TEST_F(ErasedPoints, AreInNoReportAndNoBackup) {
  LoseAnErase();
  const std::string data = folder_.File("data"), backup = folder_.File("backup");
  EXPECT_EQ(VerifyDataDir(data).value().restore_points, 4u);
  const auto refused = BackUpDataDir(data, backup);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("1 restore points that were"));
  Open();
  store_.reset();
  ASSERT_TRUE(BackUpDataDir(data, backup).ok());
  fs::remove_all(data);
  ASSERT_TRUE(RestoreDataDir(backup, data, 0).ok());
  Open();
  EXPECT_EQ(There(1, 5), left_);
}

// A start on a disk that takes nothing hides them, and they go before what they name.
TEST_F(ErasedPoints, GoOnceTheDiskTakesTheEraseAgain) {
  LoseAnErase();
  const std::string data = folder_.File("data"), base = folder_.File("base");
  fs::rename(data, base);
  int opened = 0;
  bool is_struck = true;
  for (int write = 1; is_struck; ++write) {
    SCOPED_TRACE(write);
    store_.reset();
    fs::remove_all(data);
    fs::copy(base, data, fs::copy_options::recursive);
    FaultyDisk disk;
    disk.Arm(DiskFault::kFailedWrite, write);
    auto start = TryToOpen(disk.env());
    is_struck = disk.struck() > 0;
    disk.Disarm();
    if (!start.ok()) continue;
    ++opened;
    store_ = *std::move(start);
    EXPECT_EQ(There(1, 5), left_);
    Publish(7, 7);
    store_->Flush(absl::InfiniteFuture()).IgnoreError();
    store_.reset();
    const VerifyReport report = VerifyDataDir(data).value();
    EXPECT_EQ(report.problem_count, 0u) << report.problems.at(0);
    EXPECT_EQ(report.restore_points, 5u);
    EXPECT_EQ(RawDatabase(data).All("manifests").size(), 5u);
  }
  EXPECT_GT(opened, 1);
}

// The promises name the last ones only: the others are in the tables by then.
TEST_F(ErasedPoints, StayGoneHoweverManyThereWere) {
  constexpr uint64_t kPoints = 2200;
  static_assert(kPoints > 2 * kMaxRecentlyErased);
  Open();
  Publish(1, kPoints);
  const LogSizes before = SizesOfLogs();
  for (const RestorePoint& point : store_->List("default")) {
    ASSERT_TRUE(store_->Drop(point.id, "default", /*force=*/false).ok());
  }
  // Until the promises are written anew, beside what goes on.
  const auto is_short = [&] {
    return fs::file_size(folder_.File("data/promises")) < 2 * kMaxRecentlyErased * kPromiseBytes;
  };
  for (uint64_t seed = kPoints + 1; !is_short() && seed <= kPoints + 1000; ++seed) {
    Publish(seed, seed);
  }
  ASSERT_TRUE(is_short());
  store_.reset();
  CutLogsTo(before);
  Open();
  EXPECT_EQ(There(1, kPoints), std::set<uint64_t>());
}

// After a start of the machine nobody promises what was published as `disk`. One that could not
// read it did not see it leave.
TEST_F(ErasedPoints, AreNotThoseThatAStartDidNotFind) {
  const std::string db = folder_.File("data/db"), kept = folder_.File("kept");
  Open();
  Publish(1, 5);
  Die();
  OpenAfterTheMachineStopped();
  Die();
  fs::copy(db, kept, fs::copy_options::recursive);
  CutLogsTo({});
  Open();
  EXPECT_EQ(There(1, 5), std::set<uint64_t>());
  Die();
  fs::remove_all(db);
  fs::rename(kept, db);
  Open();
  EXPECT_EQ(There(1, 5), (std::set<uint64_t>{1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace hearth
