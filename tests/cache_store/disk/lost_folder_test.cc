// Files are kept in lost/ under a free name, with their ending, or not at all and with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cache_store/disk/files/disk_tier_lost_folder.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LostFolder : public ::testing::Test {
 protected:
  LostFolder() { fs::create_directory(folder_.File("db")); }
  std::string Make(const std::string& text) const { return folder_.Write("db/000012.sst", text); }

  const TestFolder folder_;
  rocksdb::FileSystem* const files_ = rocksdb::FileSystem::Default().get();
  std::string kept_;
};

TEST_F(LostFolder, NothingInItIsOverwritten) {
  for (const char* text : {"one", "two", "three"}) {
    ASSERT_TRUE(MoveToLost(files_, Make(text), &kept_).ok());
  }
  EXPECT_EQ(kept_, folder_.File("lost/000012-2.sst"));
  EXPECT_FALSE(fs::exists(folder_.File("db/000012.sst")));
  EXPECT_EQ(folder_.Read("lost/000012.sst"), "one");
  EXPECT_EQ(folder_.Read("lost/000012-1.sst"), "two");
  EXPECT_EQ(folder_.Read("lost/000012-2.sst"), "three");
}

TEST_F(LostFolder, AFileThatIsThereAlreadyGetsNoOtherName) {
  ASSERT_TRUE(LinkToLost(files_, Make("one"), &kept_).ok());
  ASSERT_TRUE(LinkToLost(files_, folder_.File("db/000012.sst"), &kept_).ok());
  EXPECT_EQ(kept_, folder_.File("lost/000012.sst"));
  ASSERT_TRUE(MoveToLost(files_, folder_.File("db/000012.sst"), &kept_).ok());
  EXPECT_EQ(kept_, folder_.File("lost/000012.sst"));
  EXPECT_FALSE(fs::exists(folder_.File("db/000012.sst")));
  EXPECT_EQ(folder_.Read("lost/000012.sst"), "one");
  ASSERT_TRUE(LinkToLost(files_, Make("two"), &kept_).ok());
  EXPECT_EQ(folder_.Read("lost/000012-1.sst"), "two");
}

TEST_F(LostFolder, WhereThereCanBeNoneTheFileStaysAndTheErrorSaysWhy) {
  folder_.Write("lost", "no folder");
  for (const auto keep : {MoveToLost, LinkToLost}) {
    const rocksdb::IOStatus status = keep(files_, Make("one"), nullptr);
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("db/000012.sst cannot be kept in "),
                                         HasSubstr("/lost, and stays")));
    EXPECT_EQ(folder_.Read("db/000012.sst"), "one");
  }
}

}  // namespace
}  // namespace hearth
