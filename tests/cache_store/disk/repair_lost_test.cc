// A repair may bring back points from lost/ that were found lost and are proved, never points that
// were dropped since, and of points published again only the newer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "cache_store/disk/promises/promises.h"
#include "cache_store/disk/repair/repair.h"
#include "cache_store/disk/verify.h"
#include "tests/cache_store/disk/repair_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

constexpr auto kPoints = static_cast<uint64_t>(kRepairPoints);

class RepairFromLost : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    filled_ = std::make_unique<TestFolder>();
    FillForRepair(filled_->path());
  }
  static void TearDownTestSuite() { filled_.reset(); }
  void SetUp() override { fs::copy(filled_->path(), Dir(), fs::copy_options::recursive); }

  std::string Dir() const { return folder_.File("data"); }
  // As a start leaves it that found damage: files which RocksDB meant to delete are in lost/.
  void CopyAllToLost() const {
    fs::create_directories(Dir() + "/lost");
    for (const auto& entry : fs::directory_iterator(Dir() + "/db")) {
      const std::string kind = entry.path().extension().string();
      if (kind != ".sst" && kind != ".blob") continue;
      fs::copy_file(entry.path(), fs::path(Dir() + "/lost") / entry.path().filename());
    }
  }
  void Flush() const {
    std::unique_ptr<Database> db;
    ASSERT_TRUE(Database::Open(Dir(), Database::Mode::kOwn, &db).ok());
    db->files()->LetGo(/*is_damaged=*/false).PermitUncheckedError();
    ASSERT_TRUE((*db)->Flush(rocksdb::FlushOptions(), db->families()).ok());
  }
  // The database keeps no trace of what was erased: neither erases nor notes of them.
  void Forget() const {
    std::unique_ptr<Database> db;
    ASSERT_TRUE(Database::Open(Dir(), Database::Mode::kOwn, &db).ok());
    db->files()->LetGo(/*is_damaged=*/false).PermitUncheckedError();
    const std::string end(1, static_cast<char>(kGonePrefix[0] + 1));
    ASSERT_TRUE((*db)->DeleteRange({}, db->family(kMeta), kGonePrefix, end).ok());
    ASSERT_TRUE((*db)->Flush(rocksdb::FlushOptions(), db->families()).ok());
    for (auto* family : db->families()) {
      rocksdb::CompactRangeOptions all;
      all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
      ASSERT_TRUE((*db)->CompactRange(all, family, nullptr, nullptr).ok());
    }
  }
  // As a store does when most of the file is dead.
  void WritePromisesAnew() const {
    const std::string anew = WritePromises(ReadPromises(folder_.Read("data/promises")));
    std::ofstream(Dir() + "/promises", std::ios::binary) << anew;
  }
  // As rot leaves them: some entries are not whole, or nothing is left of the file.
  void SpoilPromises(bool is_all) const {
    if (is_all) {
      fs::remove(Dir() + "/promises");
      return;
    }
    std::fstream file(Dir() + "/promises", std::ios::in | std::ios::out | std::ios::binary);
    const uint64_t entries = fs::file_size(Dir() + "/promises") / kPromiseBytes;
    for (uint64_t entry = 2; entry < entries; entry += 2) {
      file.seekp(static_cast<std::streamoff>(entry * kPromiseBytes + 20)).put('x');
    }
  }
  void CutTableOf(const std::string& family) const {
    std::string table;
    {
      std::unique_ptr<Database> db;
      ASSERT_TRUE(Database::Open(Dir(), Database::Mode::kLook, &db).ok());
      std::vector<rocksdb::LiveFileMetaData> files;
      (*db)->GetLiveFilesMetaData(&files);
      for (const auto& file : files) {
        if (file.column_family_name == family) table = Dir() + "/db/" + file.relative_filename;
      }
    }
    fs::resize_file(table, fs::file_size(table) - 10);
  }
  static void Publish(TieredStore* store, int point, uint32_t tokens = 65) {
    RepairPoint what = RepairPointOf(point);
    what.prompt.tokens = KitTokens(static_cast<uint64_t>(point) + 1, tokens);
    ASSERT_TRUE(KitPublish(store, what.model, what.prompt, {tokens - 1}).ok());
  }
  RepairReport Repaired() const {
    const absl::StatusOr<RepairReport> report = RepairDataDir(Dir(), {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : RepairReport();
  }
  // How many are served; the folder is whole, and the store lets go of nothing in it.
  int64_t Served() const {
    const absl::StatusOr<VerifyReport> verified = VerifyDataDir(Dir());
    EXPECT_TRUE(verified.ok() && verified->is_whole());
    const auto store = OpenRepaired(Dir()).value();
    EXPECT_EQ(store->Stats().counters.at("recovery_dropped_manifests"), 0u);
    std::string wrong;
    const std::vector<bool> served = ServedPoints(store.get(), &wrong);
    EXPECT_EQ(wrong, "");
    return std::count(served.begin(), served.end(), true);
  }

  static std::unique_ptr<TestFolder> filled_;
  const TestFolder folder_;
};
std::unique_ptr<TestFolder> RepairFromLost::filled_;

TEST_F(RepairFromLost, WhatWasDroppedSinceStaysGone) {
  for (const bool is_written_anew : {false, true}) {
    SCOPED_TRACE(is_written_anew);
    fs::remove_all(Dir());
    SetUp();
    Flush();
    CopyAllToLost();
    {
      const auto store = OpenRepaired(Dir()).value();
      const std::vector<RestorePoint> points = store->List("default");
      for (size_t i = 0; i < 5; ++i) {
        ASSERT_TRUE(store->Drop(points.at(i).id, "default", true).ok());
      }
    }
    Forget();
    if (is_written_anew) WritePromisesAnew();
    fs::remove(Dir() + "/db/CURRENT");
    const RepairReport report = Repaired();
    EXPECT_EQ(report.restore_points, kPoints - 5);
    EXPECT_EQ(report.lost_points, 0u);
    EXPECT_EQ(Served(), kRepairPoints - 5);
  }
}

TEST_F(RepairFromLost, WhatWasFoundLostComesBackThoughThePromisesWereWrittenAnew) {
  CutTableOf("manifests");
  OpenRepaired(Dir()).value();
  ASSERT_TRUE(fs::exists(Dir() + "/lost"));
  WritePromisesAnew();
  EXPECT_EQ(Repaired().restore_points, kPoints);
  EXPECT_EQ(Served(), kRepairPoints);
}

// Nobody knows what the entries that rotted named: what only lost/ has is not taken for what left,
// and what was dropped since that start has left.
TEST_F(RepairFromLost, WhatOnlyLostHasComesBackThoughThePromisesOfItRotted) {
  for (const bool is_all : {false, true}) {
    SCOPED_TRACE(is_all);
    fs::remove_all(Dir());
    SetUp();
    CutTableOf("manifests");
    SpoilPromises(is_all);
    uint64_t unnamed = kPoints;
    {
      const auto store = OpenRepaired(Dir()).value();
      const std::vector<RestorePoint> points = store->List("default");
      ASSERT_EQ(points.size(), kPoints / 2);
      ASSERT_TRUE(store->Drop(points[0].id, "default", true).ok());
      const PromiseBook book = ReadPromises(folder_.Read("data/promises"));
      unnamed -= points.size() + book.lost.size();
    }
    Forget();
    if (is_all) WritePromisesAnew();
    const RepairReport report = Repaired();
    EXPECT_EQ(report.restore_points, kPoints - 1);
    EXPECT_EQ(report.lost_points, 0u);
    EXPECT_EQ(report.unnamed_points, is_all ? kPoints / 2 : unnamed);
    EXPECT_EQ(Served(), kRepairPoints - 1);
  }
}

// As long as the entries may be of anything in lost/, it is remembered what left of it.
TEST_F(RepairFromLost, WhatWasDroppedStaysGoneThoughThePromisesRottedBefore) {
  Flush();
  CopyAllToLost();
  SpoilPromises(/*is_all=*/true);
  {
    const auto store = OpenRepaired(Dir()).value();
    const std::vector<RestorePoint> points = store->List("default");
    for (size_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(store->Drop(points.at(i).id, "default", true).ok());
    }
  }
  WritePromisesAnew();
  OpenRepaired(Dir()).value();
  WritePromisesAnew();
  Forget();
  EXPECT_EQ(Repaired().restore_points, kPoints - 5);
  EXPECT_EQ(Served(), kRepairPoints - 5);
  // With lost/ it is forgotten.
  fs::remove_all(Dir() + "/lost");
  OpenRepaired(Dir()).value();
  EXPECT_EQ(ReadPromises(folder_.Read("data/promises")).forgot_to, 0u);
}

TEST_F(RepairFromLost, WhatWasPublishedAgainIsThereOnce) {
  const RepairReport healthy = Repaired();
  for (const char* family : {"manifests", "objects"}) {
    SCOPED_TRACE(family);
    fs::remove_all(Dir());
    SetUp();
    CutTableOf(family);
    {
      const auto store = OpenRepaired(Dir()).value();
      for (int point = 0; point < kRepairPoints; ++point) Publish(store.get(), point);
    }
    const RepairReport report = Repaired();
    EXPECT_EQ(report.restore_points, kPoints);
    EXPECT_EQ(report.objects, healthy.objects);
    EXPECT_EQ(report.slice_bytes, healthy.slice_bytes);
    EXPECT_EQ(report.lost_points, 0u);
    EXPECT_EQ(Served(), kRepairPoints);
  }
}

TEST_F(RepairFromLost, WhatWasPublishedAgainAndThenDroppedStaysGone) {
  for (const bool is_written_anew : {false, true}) {
    SCOPED_TRACE(is_written_anew);
    fs::remove_all(Dir());
    SetUp();
    CutTableOf("manifests");
    {
      const auto store = OpenRepaired(Dir()).value();
      Publish(store.get(), 0);
      ASSERT_TRUE(store->DropAll("default", true).ok());
    }
    Forget();
    if (is_written_anew) WritePromisesAnew();
    // All that was there at the first start was dropped, and one of those that were found lost.
    const RepairReport report = Repaired();
    EXPECT_EQ(report.restore_points, kPoints / 2 - 1);
    EXPECT_EQ(Served(), kRepairPoints / 2 - 1);
  }
}

// A note may say of all of a tenant that it was dropped, and what was in lost/ then is back.
TEST_F(RepairFromLost, NotesAreForgottenSinceWhatTheyTellOfMayBeBack) {
  CutTableOf("manifests");
  {
    const auto store = OpenRepaired(Dir()).value();
    ASSERT_TRUE(store->DropAll("default", true).ok());
    ASSERT_TRUE(store->WriteNote("drops", "all").ok());
  }
  EXPECT_EQ(Repaired().restore_points, kPoints / 2);
  EXPECT_EQ(OpenRepaired(Dir()).value()->ReadNote("drops").value(), "");
}

// Two prompts with one beginning: of what they share the newer objects are named by both.
TEST_F(RepairFromLost, WhatComesBackSharesWhatWasPublishedAgain) {
  const int shared = 3;
  {
    const auto store = OpenRepaired(Dir()).value();
    Publish(store.get(), shared, 129);
  }
  Flush();
  const RepairReport healthy = Repaired();
  CutTableOf("manifests");
  {
    const auto store = OpenRepaired(Dir()).value();
    Publish(store.get(), shared);
  }
  const RepairReport report = Repaired();
  EXPECT_EQ(report.restore_points, kPoints + 1);
  EXPECT_EQ(report.objects, healthy.objects);
  EXPECT_EQ(report.slice_bytes, healthy.slice_bytes);
  EXPECT_EQ(Served(), kRepairPoints);
  const auto store = OpenRepaired(Dir()).value();
  RepairPoint longer = RepairPointOf(shared);
  longer.prompt.tokens = KitTokens(shared + 1, 129);
  EXPECT_EQ(KitFetch(store.get(), longer.model, longer.prompt).value(), 128u);
}

}  // namespace
}  // namespace hearth
