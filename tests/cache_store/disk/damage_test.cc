// Damaged, truncated or missing files in a data folder: what the store repairs, loses and reports.
// flip_test.cc tests flips of single bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "absl/strings/match.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/disk_tier_db.h"
#include "cache_store/disk/disk_tier_tables.h"
#include "cache_store/disk/verify.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_store.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

class Damage : public SteppedStoreFixture, public ::testing::Test {
 protected:
  absl::Status Publish(uint64_t seed, bool is_large = false) {
    return KitPublish(store_.get(), is_large ? large_ : model_, Prompt(seed), {64}).status();
  }
  absl::StatusOr<uint32_t> Fetch(uint64_t seed, bool is_large = false) {
    return KitFetch(store_.get(), is_large ? large_ : model_, Prompt(seed));
  }
  // Flushes the log into tables.
  void Flush() {
    store_.reset();
    std::unique_ptr<Database> db;
    ASSERT_TRUE(Database::Open(folder_.path(), Database::Mode::kOwn, &db).ok());
    ASSERT_TRUE((*db)->Flush(rocksdb::FlushOptions(), db->families()).ok());
  }
  // Returns the table files of one column family, newest last.
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
      if (absl::StartsWith(name, prefix)) return entry.path();
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

  std::vector<fs::path> Aside() {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (absl::StartsWith(entry.path().filename().string(), "db.damaged")) {
        found.push_back(entry.path());
      }
    }
    return found;
  }

  const Fingerprint large_ = LargeModel();
};

TEST_F(Damage, RocksDbWritesNoInfoLog) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  EXPECT_EQ(Only("LOG"), fs::path());
}

// RocksDB asserts that a block's header is plausible, so the store must check it first.
TEST_F(Damage, DamagedBlockHeaderIsDataLoss) {
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
  EXPECT_THAT(lines_, Contains(HasSubstr("cannot be read; not served until a retry succeeds")));
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(StoredObject::kLongestHidden);
    for (uint64_t seed = 1; seed <= 4; ++seed) Fetch(seed, true).IgnoreError();
  }
  EXPECT_EQ(Counted("quarantined_objects"), 4u);
  EXPECT_THAT(lines_, Contains(HasSubstr("quarantined")));
}

// RocksDB parses a table's properties before it verifies them, so the store must check them first.
TEST_F(Damage, DamagedTableFooterIsAnError) {
  Open();
  ASSERT_TRUE(Publish(1, true).ok());
  store_.reset();
  const fs::path table = TablesOf("tables").at(0);
  std::unique_ptr<Database> db;
  ASSERT_TRUE(Database::Open(folder_.path(), Database::Mode::kOwn, &db).ok());
  const rocksdb::Options options = (*db)->GetOptions(db->family(kTables));
  const uint64_t end = fs::file_size(table);
  int refused = 0;
  for (uint64_t at = end - 1500; at < end; ++at) {
    for (const int bit : {0, 3, 7}) {
      FlipAt(table, at, bit);
      refused += rocksdb::SstFileReader(options).Open(table).ok() ? 0 : 1;
      FlipAt(table, at, bit);
    }
  }
  EXPECT_GT(refused, 1500);
  EXPECT_TRUE(rocksdb::SstFileReader(options).Open(table).ok());
}

// RocksDB does not verify the block of a large slice, so the store checks all bytes around the
// slice itself.
TEST_F(Damage, BitFlipNeverYieldsWrongSlice) {
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
  const StoredSlice slice{ParseNumberKey(key).value(), static_cast<uint8_t>(key.back()), 0, 0,
                          true};
  ASSERT_EQ(SliceKey(slice.object, slice.layer), key);
  const uint64_t begin = 2 + 3 + 12 + 8, end = begin + bytes.size(), block = end + 8 + 5;
  for (uint64_t at = 0; at < block; at = at + 1 == begin ? end : at + 1) {
    for (int bit = 0; bit < 8; ++bit) {
      FlipAt(table, at, bit);
      rocksdb::PinnableSlice value;
      const rocksdb::Status status = GetSlice(*db, slice, &value);
      EXPECT_TRUE(status.ok() ? value == bytes : status.IsCorruption() || status.IsNotFound())
          << "byte " << at << ", bit " << bit << ": " << status.ToString();
      FlipAt(table, at, bit);
    }
  }
  rocksdb::PinnableSlice value;
  EXPECT_TRUE(GetSlice(*db, slice, &value).ok());
}

TEST_F(Damage, LostTableCostsOnlyItsObjects) {
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
    EXPECT_EQ(Counted("recovery_lost_restore_points"), start == 0 ? 2u : 0u);
    EXPECT_EQ(Fetch(1, true).value_or(0), 0u);
    EXPECT_EQ(Fetch(2, true).value_or(0), 0u);
    EXPECT_EQ(Fetch(3, true).value(), 64u);
    EXPECT_EQ(Fetch(4).value(), 64u);
  }
  EXPECT_THAT(lines_, Contains(HasSubstr("its entries are lost")));
  EXPECT_TRUE(Publish(1, true).ok());
  EXPECT_EQ(Fetch(1, true).value(), 64u);
}

// Without the column family `objects`, no entry can be found. Without `meta`, the version of the
// writer is unknown.
TEST_F(Damage, LostRecordTableStartsNewDatabase) {
  for (const char* family : {"objects", "meta"}) {
    SCOPED_TRACE(family);
    Open();
    ASSERT_TRUE(Publish(1).ok());
    Flush();
    fs::remove(TablesOf(family).at(0));
    Open();
    EXPECT_EQ(Fetch(1).value(), 0u);
    EXPECT_EQ(Counted("recovery_lost_restore_points"), 1u);
    EXPECT_THAT(lines_, Contains(HasSubstr("was moved to " + folder_.path() + "/db.damaged")));
    EXPECT_THAT(lines_, Contains(HasSubstr("1 of 1 restore points are lost")));
    EXPECT_EQ(Aside().size(), 1u);
    const auto explained = store_->Explain(KitQuery(model_, Prompt(1))).value();
    EXPECT_THAT(explained.summary, HasSubstr("the disk was damaged"));
    EXPECT_TRUE(Publish(1).ok());
    Open();
    EXPECT_EQ(Fetch(1).value(), 64u);
    EXPECT_EQ(Counted("recovery_damage"), 0u);
  }
}

TEST_F(Damage, MovedDamagedDatabaseIsDeletedLater) {
  for (int nth = 0; nth < 2; ++nth) {
    Open();
    ASSERT_TRUE(Publish(1).ok());
    Flush();
    fs::remove(TablesOf("objects").at(0));
  }
  Open();
  ASSERT_EQ(Aside().size(), 1u);
  store_.reset();
  fs::last_write_time(Aside()[0], fs::file_time_type::clock::now() - std::chrono::hours(7 * 24));
  Open();
  EXPECT_EQ(Aside().size(), 0u);
  store_.reset();
  fs::remove(Only("MANIFEST-"));
  DiskTierOptions options;
  options.wait = [](absl::Duration) {};
  const auto own = DiskTier::Open(folder_.path(), "secret", options).value();
  std::ofstream(Aside().at(0) / "000099.sst") << std::string(1 << 20, 'x');
  EXPECT_GT(own->FileBytes(), uint64_t{1} << 20);
  EXPECT_TRUE(own->ReclaimSpace(uint64_t{1} << 19).ok());
  EXPECT_EQ(Aside().size(), 0u);
}

// The child process that repairs a database returns to an older state. This must not revive dropped
// restore points.
TEST_F(Damage, RepairDoesNotReviveDroppedPoints) {
  Open();
  for (uint64_t seed = 1; seed <= 3; ++seed) ASSERT_TRUE(Publish(seed, true).ok());
  Flush();
  Open();
  const Digest id = store_->List("default").at(0).id;
  ASSERT_TRUE(store_->Drop(id, "default", true).ok());
  const auto left = store_->List("default");
  store_.reset();
  // The end of RocksDB's manifest has the flush of the drop, so truncating it loses the flush.
  const fs::path manifest = Only("MANIFEST-");
  for (uint64_t bytes = fs::file_size(manifest) - 1; bytes > 40; bytes -= 40) {
    fs::resize_file(manifest, bytes);
    const TestFolder copy;
    fs::copy(folder_.path(), copy.path(), fs::copy_options::recursive);
    StoreOptions options;
    options.data_dir = copy.path();
    const auto store = OpenStore(options, Seams());
    ASSERT_TRUE(store.ok()) << store.status();
    for (const RestorePoint& point : (*store)->List("default")) EXPECT_NE(point.id, id);
  }
  EXPECT_EQ(left.size(), 2u);
}

TEST_F(Damage, DamagedRecordBlockKeepsOtherRecords) {
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
  EXPECT_EQ(Counted("recovery_damage"), 1u);
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 60u - found);
}

TEST_F(Damage, DamagedDatabaseManifestReportsLosses) {
  const auto damage = std::vector<std::pair<const char*, std::function<void()>>>{
      {"manifest cut", [&] { fs::resize_file(Only("MANIFEST-"), 40); }},
      {"manifest gone", [&] { fs::remove(Only("MANIFEST-")); }},
      {"manifest flipped", [&] { FlipAt(Only("MANIFEST-"), 20); }},
      {"CURRENT flipped", [&] { FlipAt(Only("CURRENT"), 12); }},
      {"CURRENT gone", [&] { fs::remove(Only("CURRENT")); }},
      {"CURRENT empty", [&] { fs::resize_file(Only("CURRENT"), 0); }},
  };
  uint64_t seed = 1;
  for (const auto& [what, hit] : damage) {
    SCOPED_TRACE(what);
    Open();
    const size_t before = store_->List("default").size();
    ASSERT_TRUE(Publish(seed, true).ok());
    ASSERT_TRUE(Publish(seed + 1).ok());
    Flush();
    hit();
    Open();
    const size_t left = store_->List("default").size();
    EXPECT_GE(Counted("recovery_damage"), 1u);
    EXPECT_EQ(Counted("recovery_lost_restore_points"), before + 2 - left);
    for (const bool is_large : {true, false}) {
      const uint32_t found = Fetch(is_large ? seed : seed + 1, is_large).value();
      EXPECT_TRUE(found == 0 || found == 64);
    }
    seed += 2;
  }
  EXPECT_EQ(Fetch(seed - 4, true).value(), 64u) << "only CURRENT was gone";
}

// Best-efforts recovery ignores the logs, but the next opening replays them.
TEST_F(Damage, BestEffortsRecoveryReplaysLog) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  Flush();
  Open();
  for (const uint64_t seed : {2, 3}) ASSERT_TRUE(Publish(seed).ok());
  store_.reset();
  fs::remove(Only("CURRENT"));
  Open();
  EXPECT_THAT(lines_, Contains(HasSubstr("returned to the newest complete state")));
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
  for (const uint64_t seed : {1, 2, 3}) EXPECT_EQ(Fetch(seed).value(), 64u) << seed;
}

TEST_F(Damage, FailedCompactionAllowsWrites) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  Flush();
  const fs::path table = TablesOf("objects").back();
  FlipAt(table, 20);
  std::unique_ptr<Database> db;
  ASSERT_TRUE(Database::Open(folder_.path(), Database::Mode::kOwn, &db).ok());
  const rocksdb::CompactRangeOptions all;
  const rocksdb::Status met = (*db)->CompactRange(all, db->family(kObjects), nullptr, nullptr);
  // Write a second table: RocksDB moves a single table without reading it, but reads and merges
  // two.
  ASSERT_TRUE((*db)->Put({}, db->family(kObjects), "zzzzzzzz", "x").ok());
  ASSERT_TRUE((*db)->Put({}, db->family(kObjects), "a", "x").ok());
  ASSERT_TRUE((*db)->Flush({}, db->family(kObjects)).ok());
  rocksdb::CompactRangeOptions forced;
  forced.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  EXPECT_FALSE((*db)->CompactRange(forced, db->family(kObjects), nullptr, nullptr).ok() &&
               met.ok());
  EXPECT_TRUE((*db)->Put({}, db->family(kObjects), "b", "x").ok());
}

// Each flush adds a table, because all compactions fail.
TEST_F(Damage, PersistentCompactionFailureAllowsWrites) {
  Open();
  ASSERT_TRUE(Publish(1).ok());
  Flush();
  FlipAt(TablesOf("objects").back(), 20);
  std::unique_ptr<Database> db;
  ASSERT_TRUE(Database::Open(folder_.path(), Database::Mode::kOwn, &db).ok());
  for (int i = 0; i < 60; ++i) {
    for (const char* key : {"a", "zzzzzzzz"}) {
      ASSERT_TRUE((*db)->Put({}, db->family(kObjects), key, "x").ok());
    }
    ASSERT_TRUE((*db)->Flush(rocksdb::FlushOptions(), db->families()).ok());
  }
}

// If a database has a smaller drop number than the saved number, the database is from before a drop
// and must be discarded. A damaged drop number is no reason to discard a database.
TEST_F(Damage, DamagedDropNumberDoesNotDiscardDatabase) {
  Open();
  for (uint64_t seed = 1; seed <= 40; ++seed) ASSERT_TRUE(Publish(seed).ok());
  ASSERT_TRUE(store_->Drop(store_->List("default").at(0).id, "default", true).ok());
  store_.reset();
  int flipped = 0;
  for (const fs::path& table : TablesOf("manifests")) {
    std::ifstream file(table, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const size_t at = content.find("drops");
    if (at == std::string::npos) continue;
    FlipAt(table, at);
    ++flipped;
  }
  ASSERT_GT(flipped, 0);
  for (int start = 0; start < 2; ++start) {
    Open();
    EXPECT_TRUE(Aside().empty());
    EXPECT_GE(store_->List("default").size(), 25u);
  }
}

TEST_F(Damage, RestoredBackupReportsDamagedSlice) {
  Open();
  for (uint64_t seed = 1; seed <= 3; ++seed) ASSERT_TRUE(Publish(seed, true).ok());
  store_.reset();
  const TestFolder to;
  const fs::path table = TablesOf("tables").at(1);
  FlipAt(table, fs::file_size(table) / 2);
  const auto made = BackUpDataDir(folder_.path(), to.File("backup"));
  ASSERT_TRUE(made.ok()) << made.status();
  const VerifyReport verified =
      RestoreDataDir(to.File("backup"), to.File("again")).value().verified;
  EXPECT_EQ(verified.problem_count, 1u);
  EXPECT_EQ(verified.restore_points, 3u);
}

TEST(WarningLines, WarningsAreRateLimitedPerKind) {
  std::vector<std::string> lines;
  Warnings warnings([&](const std::string& line) { lines.push_back(line); });
  for (int i = 0; i < 100; ++i) warnings.Say("damage", "again");
  warnings.Say("database", "once");
  EXPECT_EQ(lines.size(), Warnings::kMaxPerMinute + 1u);
  EXPECT_EQ(lines.back(), "database: once");
}

}  // namespace
}  // namespace hearth
