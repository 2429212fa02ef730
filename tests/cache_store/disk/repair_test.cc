// Repair of a data folder: each kind of damage, what is served after it, and what is not touched.
// Random damage, and a repair that is killed: repair_damage_test.cc.
#include "cache_store/disk/repair/repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "cache_store/disk/promises/promises.h"
#include "cache_store/disk/verify.h"
#include "tests/cache_store/disk/repair_kit.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/raw_database.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// Names and sizes of all files.
std::map<std::string, uint64_t> FilesOf(const std::string& dir) {
  std::map<std::string, uint64_t> files;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file()) files[entry.path().string()] = entry.file_size();
  }
  return files;
}

class RepairTest : public ::testing::Test {
 protected:
  // Filled once, copied for each test.
  static void SetUpTestSuite() {
    filled_ = std::make_unique<TestFolder>();
    FillForRepair(filled_->path());
  }
  static void TearDownTestSuite() { filled_.reset(); }
  void SetUp() override { Renew(); }
  void Renew() {
    fs::remove_all(Dir());
    fs::copy(filled_->path(), Dir(), fs::copy_options::recursive);
  }

  std::string Dir() const { return folder_.File("data"); }
  std::vector<fs::path> FilesLike(const std::string& begin, const std::string& end) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(Dir() + "/db")) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, begin) && absl::EndsWith(name, end)) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::vector<fs::path> TablesOf(const std::string& family) {
    std::vector<fs::path> found;
    std::unique_ptr<Database> db;
    EXPECT_TRUE(Database::Open(Dir(), Database::Mode::kLook, &db).ok());
    std::vector<rocksdb::LiveFileMetaData> files;
    (*db)->GetLiveFilesMetaData(&files);
    for (const auto& file : files) {
      if (file.column_family_name == family) {
        found.emplace_back(Dir() + "/db/" + file.relative_filename);
      }
    }
    return found;
  }
  void RemoveAll(const std::string& begin) {
    for (const fs::path& path : FilesLike(begin, "")) fs::remove(path);
  }
  static void Scribble(const fs::path& path) { std::ofstream(path) << "not what was there"; }

  RepairReport Repaired(const RepairOptions& options = {}) {
    const absl::StatusOr<RepairReport> report = RepairDataDir(Dir(), options);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : RepairReport();
  }
  // How many a store serves of it; all that is there is right.
  int Served(const std::string& dir) {
    const absl::StatusOr<VerifyReport> verified = VerifyDataDir(dir);
    EXPECT_TRUE(verified.ok() && verified->is_whole())
        << verified.status() << (verified.ok() ? verified->problems.at(0) : "");
    auto store = OpenRepaired(dir);
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return -1;
    std::string wrong;
    const std::vector<bool> served = ServedPoints(store->get(), &wrong);
    const auto count = std::count(served.begin(), served.end(), true);
    EXPECT_EQ(wrong, "");
    // Of what was promised and is lost the first start says that it is.
    const uint64_t said = (*store)->Stats().counters.at("recovery_damage");
    EXPECT_TRUE(said == 0 || count < kRepairPoints);
    const RepairPoint added{RepairPointOf(0).model, {KitTokens(1000, 65), {}}};
    EXPECT_TRUE(KitPublish(store->get(), added.model, added.prompt, {64}).ok());
    EXPECT_EQ(KitFetch(store->get(), added.model, added.prompt).value(), 64u);
    return static_cast<int>(count);
  }
  void ExpectAllKept(const std::string& what, const std::function<void()>& damage) {
    SCOPED_TRACE(what);
    Renew();
    damage();
    const RepairReport report = Repaired();
    EXPECT_FALSE(report.was_healthy);
    EXPECT_EQ(report.restore_points, static_cast<uint64_t>(kRepairPoints));
    EXPECT_EQ(report.lost_points, 0u);
    EXPECT_EQ(Served(Dir()), kRepairPoints);
  }

  static std::unique_ptr<TestFolder> filled_;
  const TestFolder folder_;
};
std::unique_ptr<TestFolder> RepairTest::filled_;

TEST_F(RepairTest, AHealthyFolderIsLeftAlone) {
  const auto before = FilesOf(Dir());
  const RepairReport report = Repaired();
  EXPECT_TRUE(report.was_healthy);
  EXPECT_EQ(report.restore_points, static_cast<uint64_t>(kRepairPoints));
  EXPECT_EQ(FilesOf(Dir()), before);
  RemoveAll("OPTIONS-");
  RemoveAll("IDENTITY");
  EXPECT_TRUE(Repaired().was_healthy) << "RocksDB makes them again";
}

TEST_F(RepairTest, WithoutTheNamesOfWhatCountsAllIsFoundAgain) {
  ExpectAllKept("no CURRENT", [&] { RemoveAll("CURRENT"); });
  ExpectAllKept("CURRENT is something else", [&] { Scribble(Dir() + "/db/CURRENT"); });
  ExpectAllKept("no MANIFEST", [&] { RemoveAll("MANIFEST-"); });
  ExpectAllKept("MANIFEST and its copy cut", [&] {
    for (const fs::path& path : FilesLike("MANIFEST-", "")) fs::resize_file(path, 100);
  });
  ExpectAllKept("none of them, nor OPTIONS and IDENTITY", [&] {
    for (const char* name : {"CURRENT", "MANIFEST-", "IDENTITY"}) RemoveAll(name);
    for (const fs::path& path : FilesLike("OPTIONS-", "")) Scribble(path);
  });
}

TEST_F(RepairTest, TablesAreTakenOverAndTheDamagedDatabaseIsKept) {
  const std::vector<fs::path> tables = TablesOf("tables");
  ASSERT_EQ(tables.size(), 10u);
  RemoveAll("MANIFEST-");
  const RepairReport report = Repaired();
  EXPECT_GT(report.linked_bytes, report.copied_bytes);
  EXPECT_EQ(report.old_database, Dir() + "/db.damaged-1");
  EXPECT_EQ(fs::hard_link_count(report.old_database + "/" + tables[0].filename().string()), 2u);
  EXPECT_FALSE(fs::exists(Dir() + "/repair.tmp"));
  EXPECT_EQ(Served(Dir()), kRepairPoints);
  fs::remove_all(report.old_database);
  EXPECT_EQ(Served(Dir()), kRepairPoints);
  // Numbers, pins and notes as before: what is repaired can be damaged again.
  RemoveAll("MANIFEST-");
  EXPECT_EQ(Repaired().restore_points, static_cast<uint64_t>(kRepairPoints) + 1);
  auto store = OpenRepaired(Dir()).value();
  int pinned = 0;
  for (const RestorePoint& point : store->List("default")) pinned += point.pinned ? 1 : 0;
  EXPECT_GT(pinned, 0);
}

TEST_F(RepairTest, ATableThatIsCutOrGoneCostsItsOwnPoints) {
  const std::vector<fs::path> tables = TablesOf("tables");
  fs::remove(tables[0]);
  fs::resize_file(tables[1], 3 * fs::file_size(tables[1]) / 4);
  fs::resize_file(tables[2], 100);
  fs::resize_file(tables[3], fs::file_size(tables[3]) - 10);  // its end, and no slice
  const RepairReport report = Repaired();
  EXPECT_EQ(report.lost_points, 3u);
  EXPECT_THAT(report.lost,
              Contains(AllOf(HasSubstr("64 tokens"), HasSubstr("is gone or damaged"))));
  EXPECT_EQ(Served(Dir()), kRepairPoints - 3);
}

TEST_F(RepairTest, ARecordsTableThatIsCutOrRottenCostsWhatWasThere) {
  for (const char* family : {"objects", "manifests", "slices"}) {
    SCOPED_TRACE(family);
    Renew();
    const fs::path table = TablesOf(family).at(0);
    fs::resize_file(table, fs::file_size(table) - 60);  // of the blocks nothing is lost
    EXPECT_EQ(Repaired().lost_points, 0u);
    EXPECT_EQ(Served(Dir()), kRepairPoints);
    Renew();
    fs::remove(table);
    Repaired();
    EXPECT_GE(Served(Dir()), kRepairPoints / 2);
  }
}

TEST_F(RepairTest, BlobFilesNeedNoTable) {
  ASSERT_FALSE(FilesLike("", ".blob").empty());
  for (const fs::path& path : TablesOf("slices")) fs::remove(path);
  Repaired();
  EXPECT_GE(Served(Dir()), kRepairPoints - 5) << "all but those whose slices were in the table";
  Renew();
  const fs::path blobs = FilesLike("", ".blob").at(0);
  std::fstream(blobs, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(30)
      .write("head and key of the first value, gone", 37);
  EXPECT_EQ(Repaired().lost_points, 1u);
  EXPECT_EQ(Served(Dir()), kRepairPoints - 1);
}

TEST_F(RepairTest, OfADamagedLogTheRestIsKept) {
  // The largest holds half of the points.
  std::vector<fs::path> logs = FilesLike("", ".log");
  const fs::path log = *std::max_element(logs.begin(), logs.end(), [](auto& a, auto& b) {
    return fs::file_size(a) < fs::file_size(b);
  });
  std::fstream(log, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(fs::file_size(log) / 3))
      .write("????", 4);
  RepairReport report = Repaired();
  EXPECT_FALSE(report.was_healthy);
  EXPECT_GE(Served(Dir()), kRepairPoints - 2);
  Renew();
  fs::remove(log);
  RemoveAll("CURRENT");
  Repaired();
  EXPECT_EQ(Served(Dir()), kRepairPoints / 2);
}

TEST_F(RepairTest, WhatAStartGaveUpIsTakenFromLost) {
  for (const char* family : {"tables", "objects", "manifests"}) {
    SCOPED_TRACE(family);
    Renew();
    const fs::path table = TablesOf(family).at(0);
    fs::resize_file(table, fs::file_size(table) - 10);
    OpenRepaired(Dir()).value();
    ASSERT_TRUE(fs::exists(Dir() + "/lost/" + table.filename().string()));
    EXPECT_EQ(Repaired().restore_points, static_cast<uint64_t>(kRepairPoints));
    EXPECT_EQ(Served(Dir()), kRepairPoints);
    EXPECT_FALSE(fs::exists(Dir() + "/lost"));
  }
}

TEST_F(RepairTest, WhatExpiredIsNotBroughtBackUnlessItIsPinned) {
  {
    auto store = OpenRepaired(Dir()).value();
    for (const uint64_t seed : {2000, 2001}) {
      PublishSpec spec = KitSpec(RepairPointOf(0).model, {KitTokens(seed, 65), {}}, {64});
      spec.ttl = absl::Hours(1);
      auto publish = store->Publish(spec).value();
      ASSERT_TRUE(
          KitPutAll(publish.get(), spec, RepairPointOf(0).model, {KitTokens(seed, 65), {}}).ok());
      ASSERT_TRUE(publish->Commit().ok());
    }
    for (const RestorePoint& point : store->List("default")) {
      if (point.expires_in == absl::InfiniteDuration()) continue;
      ASSERT_TRUE(store->SetPinned(point.id, "default", true).ok());
      break;
    }
  }
  RemoveAll("CURRENT");
  RepairOptions options;
  options.dry_run = true;
  EXPECT_EQ(Repaired(options).restore_points, static_cast<uint64_t>(kRepairPoints) + 2);
  options.dry_run = false;
  options.now += absl::Hours(2);
  const RepairReport report = Repaired(options);
  EXPECT_EQ(report.restore_points, static_cast<uint64_t>(kRepairPoints) + 1);
  EXPECT_EQ(report.expired_points, 1u);
  EXPECT_EQ(report.lost_points, 0u);
  EXPECT_EQ(VerifyDataDir(Dir()).value().missing_points, 0u);
}

TEST_F(RepairTest, WhatWasDroppedStaysGoneAndNumbersGrow) {
  {
    auto store = OpenRepaired(Dir()).value();
    const std::vector<RestorePoint> points = store->List("default");
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(store->Drop(points.at(static_cast<size_t>(i)).id, "default", true).ok());
    }
  }
  RawDatabase(Dir()).Put("objects", NumberKey(100000), "no record");
  RemoveAll("CURRENT");
  EXPECT_EQ(Repaired().restore_points, static_cast<uint64_t>(kRepairPoints) - 5);
  EXPECT_EQ(Served(Dir()), kRepairPoints - 5);
  bool is_above = false;
  for (const auto& [key, value] : RawDatabase(Dir()).All("objects")) {
    is_above |= ParseNumberKey(key).value() > 100000;
  }
  EXPECT_TRUE(is_above) << "what was published after";
}

// The file of promises as a store would have written it, but for what the test takes out.
TEST_F(RepairTest, WhatWasAcknowledgedAndIsGoneIsNamedAndWhatLeftStaysGone) {
  std::string promises = SerializePromise(PromisesHeader());
  uint64_t left = 0;
  for (const auto& [key, value] : RawDatabase(Dir()).All("manifests")) {
    PromiseEntry entry;
    entry.number = left = ParseNumberKey(key).value();
    entry.level = PromiseLevel::kDisk;
    promises += SerializePromise(entry);
  }
  PromiseEntry entry;
  entry.kind = PromiseKind::kReleased;
  entry.number = left;
  promises += SerializePromise(entry);
  entry.kind = PromiseKind::kKept;
  entry.level = PromiseLevel::kSync;
  entry.number = 70000;
  promises += SerializePromise(entry);
  std::ofstream(Dir() + "/promises", std::ios::binary) << promises;
  RemoveAll("CURRENT");
  RepairOptions options;
  options.to = folder_.File("new");
  const RepairReport report = Repaired(options);
  EXPECT_EQ(report.restore_points, static_cast<uint64_t>(kRepairPoints) - 1);
  EXPECT_EQ(report.lost_points, 1u);
  EXPECT_THAT(report.lost, Contains(AllOf(HasSubstr("70000"), HasSubstr("acknowledged"))));
  EXPECT_EQ(Served(options.to), kRepairPoints - 1);
  EXPECT_TRUE(fs::exists(options.to + "/promises"));
}

TEST_F(RepairTest, AFolderInUseOrOfNoStoreIsRefused) {
  {
    const auto store = OpenRepaired(Dir()).value();
    const absl::Status refused = RepairDataDir(Dir(), {}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  }
  fs::create_directories(folder_.File("other/db"));
  for (const std::string& dir : {folder_.File("absent"), folder_.path(), folder_.File("other")}) {
    const absl::Status refused = RepairDataDir(dir, {}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("is not a store's data folder"));
  }
  EXPECT_EQ(folder_.Files(), 2u);
}

TEST_F(RepairTest, ADryRunChangesNothingAndANewFolderLeavesTheOldOne) {
  RemoveAll("MANIFEST-");
  const auto before = FilesOf(Dir());
  RepairOptions options;
  options.dry_run = true;
  EXPECT_EQ(Repaired(options).restore_points, static_cast<uint64_t>(kRepairPoints));
  auto after = FilesOf(Dir());
  EXPECT_EQ(after, before);
  options.dry_run = false;
  options.to = folder_.File("new");
  EXPECT_EQ(Repaired(options).folder, options.to);
  EXPECT_EQ(FilesOf(Dir()), before);
  EXPECT_EQ(Served(options.to), kRepairPoints);
  EXPECT_THAT(std::string(RepairDataDir(Dir(), options).status().message()),
              HasSubstr("is not empty"));
}

TEST_F(RepairTest, AMountPointIsNoNewFolder) {
  fs::remove(Dir() + "/db/CURRENT");
  RepairOptions options;
  options.to = "/proc";
  const auto refused = RepairDataDir(Dir(), options);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("is a mount point: name a folder"));
}

TEST_F(RepairTest, AFullDiskLeavesTheFolderAsItWas) {
  RemoveAll("MANIFEST-");
  const auto before = FilesOf(Dir());
  int refused = 0;
  for (uint64_t room = 0;; room += 700'000) {
    SCOPED_TRACE(room);
    FaultyDisk disk;
    disk.SetRoom(room);
    RepairOptions options;
    options.env = disk.env();
    const absl::StatusOr<RepairReport> full = RepairDataDir(Dir(), options);
    if (full.ok()) break;
    ++refused;
    EXPECT_TRUE(absl::IsResourceExhausted(full.status())) << full.status();
    EXPECT_THAT(std::string(full.status().message()), HasSubstr("is as it was"));
    ASSERT_EQ(FilesOf(Dir()), before);
  }
  EXPECT_GT(refused, 2);
  EXPECT_EQ(Served(Dir()), kRepairPoints);
}

TEST_F(RepairTest, ALostSecretsRecordNeedsTheSecret) {
  RawDatabase(Dir()).Delete("meta", "secret_check");
  RemoveAll("MANIFEST-");
  fs::rename(Dir() + "/secret", folder_.File("kept"));
  RepairOptions options;
  EXPECT_THAT(std::string(RepairDataDir(Dir(), options).status().message()),
              HasSubstr("--secret-file"));
  options.secret_file = folder_.Write("wrong", std::string(64, 'a'));
  fs::permissions(options.secret_file, fs::perms::owner_read);
  EXPECT_THAT(std::string(RepairDataDir(Dir(), options).status().message()), HasSubstr("another"));
  options.secret_file = folder_.File("kept");
  EXPECT_EQ(Repaired(options).restore_points, static_cast<uint64_t>(kRepairPoints));
  fs::rename(folder_.File("kept"), Dir() + "/secret");
  EXPECT_EQ(Served(Dir()), kRepairPoints);
}

}  // namespace
}  // namespace hearth
