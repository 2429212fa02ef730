// Where a log ends that the machine, or a medium, left torn: what a start does not read is never
// read again, and nothing that was promised is behind what it does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/files/disk_tier_records.h"
#include "cache_store/disk/repair/repair.h"
#include "cache_store/disk/verify.h"
#include "tests/cache_store/disk/log_ends_kit.h"
#include "tests/support/faulty_disk.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(LogEnds, WhatTheMachineLostBehindAHoleStaysLost) {
  Open();
  Publish(1, 2, Durability::kSync);
  Publish(3, 30);
  Die();
  LoseAPage(Log(/*is_newest=*/true));
  OpenAfterTheMachineStopped();
  const std::set<uint64_t> there = There(1, 30);
  EXPECT_TRUE(there.count(1) == 1 && there.count(2) == 1);
  EXPECT_LT(there.size(), 30u);
  EXPECT_EQ(Counted("recovery_damage"), 0u);
  Publish(31, 45);
  for (int life = 0; life < 2; ++life) {
    Die();
    Open();
    EXPECT_EQ(There(1, 30), there) << "by the numbers of these others go since";
    EXPECT_EQ(There(31, 45).size(), 15u);
    EXPECT_EQ(Counted("recovery_damage"), 0u);
    EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u);
    EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
  }
  EXPECT_FALSE(fs::exists(folder_.File("data/lost")));
}

TEST_F(LogEnds, ARepairHasNothingToDoWhereTheMachineStopped) {
  Open();
  Publish(1, 2, Durability::kSync);
  Publish(3, 30);
  Die();
  LoseAPage(Log(/*is_newest=*/true));
  const absl::StatusOr<RepairReport> repaired = RepairDataDir(folder_.File("data"), {});
  ASSERT_TRUE(repaired.ok()) << repaired.status();
  EXPECT_TRUE(repaired->was_healthy);
  EXPECT_THAT(repaired->damage, ::testing::IsEmpty());
  EXPECT_THAT(repaired->lost, ::testing::IsEmpty());
  OpenAfterTheMachineStopped();
  const std::set<uint64_t> there = There(1, 30);
  EXPECT_TRUE(there.count(1) == 1 && there.count(2) == 1);
  EXPECT_EQ(repaired->restore_points, there.size());
  EXPECT_EQ(Counted("recovery_damage"), 0u);
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
}

// The manifest of a point whose end is put off is written again, under the number by which it was
// promised as `sync` when it was new.
TEST_F(LogEnds, WhatIsWrittenAgainBehindAHoleWasNotPromisedThere) {
  const auto publish_first_for = [&](absl::Duration ttl, Durability level) {
    PublishSpec spec = KitSpec(model_, Prompt(1), {64}, level);
    spec.ttl = ttl;
    auto session = store_->Publish(spec).value();
    EXPECT_TRUE(KitPutAll(session.get(), spec, model_, Prompt(1)).ok());
    EXPECT_TRUE(session->Commit().ok());
  };
  for (const bool is_in_tables : {false, true}) {
    fs::remove_all(folder_.File("data"));
    Open();
    publish_first_for(absl::Minutes(5), Durability::kSync);
    if (is_in_tables) {
      store_.reset();
      std::unique_ptr<Database> db;
      ASSERT_TRUE(Database::Open(folder_.File("data"), Database::Mode::kOwn, &db).ok());
      ASSERT_TRUE((*db)->Flush(rocksdb::FlushOptions(), db->families()).ok());
      db.reset();
      Open();
    }
    Publish(2, 30);
    publish_first_for(absl::Minutes(10), Durability::kDisk);
    Die();
    LoseAPage(Log(/*is_newest=*/true));
    OpenAfterTheMachineStopped();
    EXPECT_EQ(Counted("recovery_damage"), 0u) << is_in_tables;
    EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
    EXPECT_EQ(There(1, 1).size(), 1u);
    store_.reset();
  }
}

TEST_F(LogEnds, WhatLaterLogsPromisedIsReadBehindAHole) {
  Open();
  Publish(1, 30);
  Die();
  Open();
  for (const RestorePoint& point : store_->List("default")) {
    ASSERT_TRUE(store_->Drop(point.id, "default", /*subtree=*/false).ok());
  }
  Publish(31, 40, Durability::kSync);
  Die();
  LoseAPage(Log(/*is_newest=*/false));
  OpenAfterTheMachineStopped();
  EXPECT_EQ(There(31, 40).size(), 10u);
  EXPECT_EQ(There(1, 30).size(), 0u);
  EXPECT_GT(Counted("recovery_damage"), 0u);
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
}

// The start that put a log right may end before it has told what it lost.
TEST_F(LogEnds, WhatAStartFoundItTellsTheNextIfItCannotGoOn) {
  KitModel geometry;
  geometry.head_dim = 256;  // the page is of one slice, whose object and manifest are there
  model_ = geometry.Make();
  Open();
  Publish(1, 9);
  Die();
  LoseAPage(Log(/*is_newest=*/true));
  StoreOptions options;
  options.data_dir = folder_.File("data");
  options.secret_file = folder_.File("another");
  std::ofstream(options.secret_file) << std::string(64, 'a');
  fs::permissions(options.secret_file, fs::perms::owner_read);
  StoreSeams seams = SteppedSeams(&executor_, &clock_);
  seams.boot = boot_;
  EXPECT_FALSE(OpenStore(options, std::move(seams)).ok());
  Open();
  EXPECT_GT(Counted("recovery_damage"), 0u);
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 9 - There(1, 9).size());
  Open();
  EXPECT_EQ(Counted("recovery_damage"), 0u);
}

// A start that was killed while it repaired a log, or a copy of the folder by links, still has the
// part that is cut off here.
TEST_F(LogEnds, WhatIsCutOffIsKeptUnderOtherNames) {
  Open();
  Publish(1, 30);
  Die();
  Open();
  Publish(31, 40);
  Die();
  LoseAPage(Log(/*is_newest=*/false));
  fs::create_directory(folder_.File("data/lost"));
  std::vector<std::pair<fs::path, std::string>> kept;
  for (const bool is_newest : {false, true}) {
    const fs::path log = Log(is_newest), other = folder_.File("data/lost") / log.filename();
    fs::create_hard_link(log, other);
    kept.emplace_back(other, folder_.Read("data/lost/" + log.filename().string()));
  }
  OpenAfterTheMachineStopped();
  EXPECT_EQ(There(31, 40).size(), 0u);
  EXPECT_LT(There(1, 30).size(), 30u);
  for (const auto& [path, bytes] : kept) {
    EXPECT_TRUE(folder_.Read("data/lost/" + path.filename().string()) == bytes) << path;
  }
  EXPECT_EQ(Counted("recovery_damage"), 0u);
}

// The disk is full, and nothing is damaged.
TEST_F(LogEnds, WhatCannotBeCutOffForWantOfRoomIsNotCalledDamaged) {
  Open();
  Publish(1, 30);
  Die();
  const fs::path log = Log(/*is_newest=*/true);
  LoseAPage(log);
  fs::create_directory(folder_.File("data/lost"));
  fs::create_hard_link(log, folder_.File("data/lost") / log.filename());
  ++boot_[1];
  FaultyDisk disk;
  disk.SetFull(true);
  const absl::Status full = TryToOpen(disk.env()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr(log.filename().string() + " is to end after "), HasSubstr("No space"),
                    Not(HasSubstr("damaged"))));
  Open();
  EXPECT_LT(There(1, 30).size(), 30u);
}

// A flipped bit is put right, and behind the hole of one log nothing is taken in.
TEST_F(LogEnds, VerifySaysWhatTheStartTakesInAndWhatNot) {
  Open();
  Publish(1, 30);
  Die();
  const fs::path log = Log(/*is_newest=*/true);
  LoseAPage(log);
  std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(fs::file_size(log) / 4);
  const char byte = static_cast<char>(file.seekg(at).get());
  file.seekp(at).put(static_cast<char>(byte ^ 4)).flush();
  const std::string bytes = folder_.Read("data/db/" + log.filename().string());
  const uint64_t before = ScanLog(bytes.substr(0, WholeBytes(bytes)), nullptr).records;
  const VerifyReport report = VerifyDataDir(folder_.File("data")).value();
  OpenAfterTheMachineStopped();
  const auto number_in = [](const std::vector<std::string>& lines, const std::string& before) {
    for (const std::string& line : lines) {
      const size_t at = line.find(before);
      if (at != line.npos) return std::strtoull(line.c_str() + at + before.size(), nullptr, 10);
    }
    return 0ull;
  };
  const uint64_t kept =
      number_in(lines_, "flipped bits were put right, what else was hit is lost, ");
  EXPECT_GT(kept, before);
  EXPECT_EQ(number_in(report.problems, "is damaged: behind that "), kept - before);
  EXPECT_GT(number_in(report.problems, "takes them in, but not the "), 0u);
}

// It is cut off before the next log begins, elsewhere perhaps than where this one ends.
TEST_F(LogEnds, ATornEndIsNoDamageLater) {
  Open();
  Publish(1, 5);
  Die();
  const fs::path log = Log(/*is_newest=*/true);
  const uint64_t torn_bytes = fs::file_size(log) - 10;
  fs::resize_file(log, torn_bytes);
  OpenAfterTheMachineStopped();
  EXPECT_LT(fs::file_size(log), torn_bytes);
  EXPECT_EQ(There(1, 5).size(), 4u);
  Publish(6, 9);
  for (int life = 0; life < 2; ++life) {
    Die();
    Open();
    EXPECT_EQ(There(1, 9).size(), 8u);
    EXPECT_EQ(Counted("recovery_damage"), 0u);
  }
  EXPECT_FALSE(fs::exists(folder_.File("data/lost")));
}

}  // namespace
}  // namespace hearth
