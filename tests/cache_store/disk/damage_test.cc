// Files of a data folder that rot, shrink or vanish: what the store mends, what it gives up, and
// what it says. Whatever one bit may do: flip_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/disk_tier_tables.h"
#include "cache_store/disk/files/disk_tier_manifest.h"
#include "cache_store/disk/verify.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

class Damage : public ::testing::Test {
 protected:
  Damage() {
    KitModel geometry;
    geometry.head_dim = 1024;
    geometry.layer_types = "llllg";
    large_ = geometry.Make();
  }
  void Open() {
    store_.reset();
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    options.on_warning = [this](const std::string& line) { lines_.push_back(line); };
    absl::StatusOr<std::unique_ptr<TieredStore>> opened =
        OpenStore(options, SteppedSeams(&executor_));
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  absl::Status Publish(uint64_t seed, bool is_large = false) {
    return KitPublish(store_.get(), is_large ? large_ : model_, Prompt(seed), {64}).status();
  }
  absl::StatusOr<uint32_t> Fetch(uint64_t seed, bool is_large = false) {
    return KitFetch(store_.get(), is_large ? large_ : model_, Prompt(seed));
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }
  uint64_t Counted(const char* name) { return store_->Stats().counters.at(name); }
  // Everything that is in the log becomes tables.
  void Flush() {
    store_.reset();
    std::unique_ptr<Database> db;
    ASSERT_TRUE(Database::Open(folder_.path(), Database::Mode::kOwn, &db).ok());
    ASSERT_TRUE((*db)->Flush(rocksdb::FlushOptions(), db->families()).ok());
  }
  // Of one family, the newest last.
  std::vector<fs::path> TablesOf(const std::string& family) {
    std::unique_ptr<Database> db;
    EXPECT_TRUE(Database::Open(folder_.path(), Database::Mode::kLook, &db).ok());
    std::vector<rocksdb::LiveFileMetaData> files;
    (*db)->GetLiveFilesMetaData(&files);
    std::vector<fs::path> paths;
    for (const auto& file : files) {
      if (file.column_family_name != family) continue;
      paths.emplace_back(folder_.path() + "/db/" + file.relative_filename);
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  fs::path Only(const std::string& prefix) {
    for (const auto& entry : fs::directory_iterator(folder_.path() + "/db")) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, prefix) && !absl::EndsWith(name, kCopySuffix)) return entry.path();
    }
    return {};
  }
  static void FlipAt(const fs::path& path, uint64_t at, int bit = 6) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 1 << bit));
  }

  const TestFolder folder_;
  Fingerprint model_ = KitModel().Make(), large_ = model_;
  std::vector<std::string> lines_;
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

TEST_F(Damage, RocksDbsOwnLogIsNoFileAndOneOfAnOlderVersionGoes) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  store_.reset();
  std::ofstream(folder_.path() + "/db/LOG") << "old";
  std::ofstream(folder_.path() + "/db/LOG.old.17") << "older";
  Open();
  EXPECT_EQ(Only("LOG"), fs::path());
  EXPECT_EQ(Fetch(1).value(), 64u);
}

// RocksDB asserts that what a block begins with makes sense.
TEST_F(Damage, ABitInTheFirstBytesOfATablesBlockIsAnErrorAndNoAbort) {
  Open();
  for (uint64_t seed = 1; seed <= 4; ++seed) ASSERT_TRUE(Publish(seed, true).ok());
  store_.reset();
  const std::vector<fs::path> tables = TablesOf("tables");
  ASSERT_EQ(tables.size(), 4u);
  for (uint64_t at = 0; at < 4; ++at) FlipAt(tables[at], 1 + at);
  EXPECT_EQ(VerifyDataDir(folder_.path()).value().problem_count, 4u);
  Open();
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EXPECT_TRUE(absl::IsDataLoss(Fetch(seed, true).status()));
    EXPECT_EQ(Fetch(seed, true).value(), 0u);
  }
  EXPECT_EQ(Counted("quarantined_objects"), 4u);
  EXPECT_THAT(lines_, Contains(HasSubstr("quarantined")));
}

// RocksDB does not verify the block of a large slice: everything around the slice is looked at
// first.
TEST_F(Damage, EveryBitAroundASliceIsHarmless) {
  Open();
  ASSERT_TRUE(Publish(1, true).ok());
  store_.reset();
  const fs::path table = TablesOf("tables").at(0);
  std::unique_ptr<Database> db;
  ASSERT_TRUE(Database::Open(folder_.path(), Database::Mode::kOwn, &db).ok());
  const std::unique_ptr<rocksdb::Iterator> first(
      (*db)->NewIterator(VerifiedReads(), db->family(kTables)));
  first->SeekToFirst();
  ASSERT_TRUE(first->Valid());
  const std::string key = first->key().ToString(), bytes = first->value().ToString();
  ASSERT_EQ(bytes.size(), size_t{128} << 10);
  const uint64_t begin = 2 + 3 + 12 + 8, end = begin + bytes.size(), block = end + 8 + 5;
  for (uint64_t at = 0; at < block; at = at + 1 == begin ? end : at + 1) {
    for (int bit = 0; bit < 8; ++bit) {
      FlipAt(table, at, bit);
      rocksdb::PinnableSlice value;
      const rocksdb::Status status = GetSlice(*db, key, &value);
      EXPECT_TRUE(status.ok() ? value == bytes : status.IsCorruption() || status.IsNotFound())
          << "byte " << at << ", bit " << bit << ": " << status.ToString();
      FlipAt(table, at, bit);
    }
  }
  rocksdb::PinnableSlice value;
  EXPECT_TRUE(GetSlice(*db, key, &value).ok());
}

TEST_F(Damage, ATableThatIsGoneOrCutCostsItsOwnObjectsAndNotTheStart) {
  Open();
  for (uint64_t seed = 1; seed <= 3; ++seed) ASSERT_TRUE(Publish(seed, true).ok());
  ASSERT_TRUE(Publish(4).ok());
  store_.reset();
  const std::vector<fs::path> tables = TablesOf("tables");
  ASSERT_EQ(tables.size(), 3u);
  fs::remove(tables[0]);
  fs::resize_file(tables[1], fs::file_size(tables[1]) / 2);
  for (int start = 0; start < 2; ++start) {
    Open();
    EXPECT_EQ(Counted("recovery_damage"), start == 0 ? 2u : 0u);
    EXPECT_EQ(Fetch(1, true).value_or(0), 0u);
    EXPECT_EQ(Fetch(2, true).value_or(0), 0u);
    EXPECT_EQ(Fetch(3, true).value(), 64u);
    EXPECT_EQ(Fetch(4).value(), 64u);
  }
  EXPECT_THAT(lines_, Contains(HasSubstr("what it held is lost")));
  EXPECT_TRUE(fs::exists(folder_.path() + "/lost/" + tables[1].filename().string()));
  EXPECT_TRUE(Publish(1, true).ok());
  EXPECT_EQ(Fetch(1, true).value(), 64u);
}

TEST_F(Damage, ARecordsTableThatIsGoneCostsItsOwnObjectsAndErasesNone) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  Flush();
  Open();
  ASSERT_TRUE(Publish(2).ok());
  Flush();
  const std::vector<fs::path> tables = TablesOf("objects");
  ASSERT_GE(tables.size(), 2u);
  fs::remove(tables[0]);
  Open();
  EXPECT_EQ(Fetch(1).value(), 0u);
  EXPECT_EQ(Fetch(2).value(), 64u);
  EXPECT_GT(Counted("recovery_damage"), 0u);
  EXPECT_GT(Counted("recovery_dropped_manifests"), 0u);
  EXPECT_EQ(Counted("recovery_collected_objects"), 0u);
  const auto explained = store_->Explain(KitQuery(model_, Prompt(1))).value();
  EXPECT_THAT(explained.summary, HasSubstr("its disk was damaged"));
}

TEST_F(Damage, ARottenBlockOfRecordsCostsThatBlock) {
  Open();
  for (uint64_t seed = 1; seed <= 60; ++seed) ASSERT_TRUE(Publish(seed).ok());
  Flush();
  const fs::path table = TablesOf("objects").back();
  FlipAt(table, fs::file_size(table) / 2);
  EXPECT_GT(VerifyDataDir(folder_.path()).value().problem_count, 0u);
  Open();
  int found = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) found += Fetch(seed).value() == 64 ? 1 : 0;
  EXPECT_GT(found, 40);
  EXPECT_LT(found, 60);
  EXPECT_EQ(Counted("recovery_damage"), 2u) << "the block, and that points are lost";
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 60u - found);
}

TEST_F(Damage, ACutManifestOrCurrentIsMendedAndNothingIsLost) {
  Open();
  for (uint64_t seed = 1; seed <= 5; ++seed) ASSERT_TRUE(Publish(seed, true).ok());
  Flush();
  const fs::path manifest = Only("MANIFEST-"), current = Only("CURRENT");
  const auto expect_whole = [&](const char* what) {
    SCOPED_TRACE(what);
    Open();
    for (uint64_t seed = 1; seed <= 5; ++seed) EXPECT_EQ(Fetch(seed, true).value(), 64u);
    EXPECT_EQ(Counted("recovery_damage"), 1u);
    store_.reset();
  };
  fs::resize_file(manifest, fs::file_size(manifest) / 2);
  expect_whole("manifest cut");
  fs::remove(Only("MANIFEST-"));
  expect_whole("manifest gone");
  FlipAt(Only("MANIFEST-"), 20);
  expect_whole("manifest flipped");
  FlipAt(current, 12);
  expect_whole("CURRENT flipped");
  fs::remove(current);
  expect_whole("CURRENT gone");
}

TEST_F(Damage, WithoutAnyManifestNothingIsErased) {
  Open();
  ASSERT_TRUE(Publish(1, true).ok());
  store_.reset();
  const size_t tables = TablesOf("tables").size();
  for (const auto& entry : fs::directory_iterator(folder_.path() + "/db")) {
    if (absl::StartsWith(entry.path().filename().string(), "MANIFEST-")) fs::remove(entry.path());
  }
  StoreOptions options;
  options.data_dir = folder_.path();
  for (int start = 0; start < 2; ++start) {
    const absl::Status refused = TieredStore::Open(options).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("restore a backup"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("hearthctl repair " + folder_.path()));
  }
  size_t left = 0;
  for (const auto& entry : fs::directory_iterator(folder_.path() + "/db")) {
    left += entry.path().extension() == ".sst" ? 1 : 0;
  }
  EXPECT_EQ(left, tables);
}

TEST_F(Damage, WithoutAnyManifestTheLogIsNotErasedEither) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  store_.reset();
  ASSERT_EQ(Only("0").extension(), ".log") << "all there is";
  const std::string log = Only("0").string();
  for (const auto& entry : fs::directory_iterator(folder_.path() + "/db")) {
    if (absl::StartsWith(entry.path().filename().string(), "MANIFEST-")) fs::remove(entry.path());
  }
  fs::remove(Only("CURRENT"));
  StoreOptions options;
  options.data_dir = folder_.path();
  for (int start = 0; start < 2; ++start) {
    const absl::Status refused = TieredStore::Open(options).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_TRUE(fs::exists(log));
  }
}

TEST_F(Damage, ACompactionThatMeetsRotDoesNotEndWriting) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  Flush();
  const fs::path table = TablesOf("objects").back();
  FlipAt(table, 20);
  std::unique_ptr<Database> db;
  ASSERT_TRUE(Database::Open(folder_.path(), Database::Mode::kOwn, &db).ok());
  const rocksdb::CompactRangeOptions all;
  const rocksdb::Status met = (*db)->CompactRange(all, db->family(kObjects), nullptr, nullptr);
  // Nothing to merge it with: moved as it is. With another above it, it is read.
  ASSERT_TRUE((*db)->Put({}, db->family(kObjects), "zzzzzzzz", "x").ok());
  ASSERT_TRUE((*db)->Put({}, db->family(kObjects), "a", "x").ok());
  ASSERT_TRUE((*db)->Flush({}, db->family(kObjects)).ok());
  rocksdb::CompactRangeOptions forced;
  forced.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  EXPECT_FALSE((*db)->CompactRange(forced, db->family(kObjects), nullptr, nullptr).ok() &&
               met.ok());
  EXPECT_TRUE((*db)->Put({}, db->family(kObjects), "b", "x").ok());
}

TEST_F(Damage, ABackupOfRotIsRefusedWithTheTablesName) {
  Open();
  for (uint64_t seed = 1; seed <= 3; ++seed) ASSERT_TRUE(Publish(seed, true).ok());
  ASSERT_TRUE(Publish(4).ok());
  store_.reset();
  const TestFolder to;
  ASSERT_TRUE(BackUpDataDir(folder_.path(), to.File("whole")).ok());
  const fs::path table = TablesOf("tables").at(1);
  FlipAt(table, fs::file_size(table) / 2);
  const absl::Status refused = BackUpDataDir(folder_.path(), to.File("rotten")).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(table.filename().string()));
  EXPECT_FALSE(RestoreDataDir(to.File("rotten"), to.File("again")).ok());
  // Rot in points that are gone does not matter.
  Open();
  for (uint64_t seed = 1; seed <= 3; ++seed) Fetch(seed, true).status().IgnoreError();
  executor_->RunAll();
  store_.reset();
  const auto made = BackUpDataDir(folder_.path(), to.File("rotten"));
  EXPECT_TRUE(made.ok()) << made.status();
}

TEST(WarningLines, OfOneKindComeAFewAMinute) {
  std::vector<std::string> lines;
  Warnings warnings([&](const std::string& line) { lines.push_back(line); });
  for (int i = 0; i < 100; ++i) warnings.Say("damage", "again");
  warnings.Say("database", "once");
  EXPECT_EQ(lines.size(), Warnings::kMaxAMinute + 1u);
  EXPECT_EQ(lines.back(), "database: once");
}

}  // namespace
}  // namespace hearth
