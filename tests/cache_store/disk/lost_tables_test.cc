// Tables that are gone, wherever RocksDB keeps them.
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cache_store/disk/disk_tier_db.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr char kKey[] = "annas";
constexpr int kVersions = 4;  // so many tables begin a compaction

class LostTables : public ::testing::Test {
 protected:
  void Open() {
    db_.reset();
    const absl::Status opened = Database::Open(folder_->path(), Database::Mode::kOwn, &db_);
    ASSERT_TRUE(opened.ok()) << opened;
    ASSERT_TRUE((*db_)->EnableAutoCompaction({family()}).ok());
  }
  rocksdb::ColumnFamilyHandle* family() { return db_->family(kFingerprints); }
  // As a table of its own.
  void Put(const std::string& value) {
    ASSERT_TRUE((*db_)->Put({}, family(), kKey, value).ok());
    ASSERT_TRUE((*db_)->Flush({}, family()).ok());
  }
  std::vector<rocksdb::LiveFileMetaData> Tables() {
    std::vector<rocksdb::LiveFileMetaData> all, own;
    (*db_)->GetLiveFilesMetaData(&all);
    for (const auto& table : all) {
      if (table.column_family_name == kFamilyNames[kFingerprints]) own.push_back(table);
    }
    return own;
  }
  std::string Value() {
    std::string value;
    const rocksdb::Status status = (*db_)->Get(VerifiedReads(), family(), kKey, &value);
    return status.ok() ? value : status.ToString();
  }

  std::unique_ptr<TestFolder> folder_ = std::make_unique<TestFolder>();
  std::unique_ptr<Database> db_;
};

// RocksDB moves tables of one key into level 1 as they are, and asserts that their keys ascend when
// it reads them together.
TEST_F(LostTables, OneOfSeveralWithVersionsOfOneKeyEndsNoCompaction) {
  for (int lost = 0; lost < kVersions; ++lost) {
    folder_ = std::make_unique<TestFolder>();
    Open();
    for (int i = 0; i < kVersions; ++i) Put(std::to_string(i));
    rocksdb::CompactRangeOptions none;
    ASSERT_TRUE((*db_)->CompactRange(none, family(), nullptr, nullptr).ok());
    ASSERT_EQ(Tables().size(), size_t{kVersions});
    ASSERT_EQ(Tables()[0].level, 1);
    const std::string name = Tables()[static_cast<size_t>(lost)].relative_filename;
    db_.reset();
    std::filesystem::remove(DatabasePath(folder_->path()) + "/" + name);
    Open();
    ASSERT_EQ(db_->found().lines.size(), 1u);
    // The newest first.
    EXPECT_EQ(Value(), lost == 0 ? "2" : "3") << lost;
    rocksdb::CompactRangeOptions all;
    all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
    ASSERT_TRUE((*db_)->CompactRange(all, family(), nullptr, nullptr).ok());
    EXPECT_EQ(Value(), lost == 0 ? "2" : "3") << lost;
    db_.reset();
  }
}

}  // namespace
}  // namespace hearth
