// The data folder contains prompts, so other local users must not be able to read it, or a warning
// must say that they can.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

class PrivateFolder : public ::testing::Test {
 protected:
  // Starts a store, publishes a prompt and stops the store.
  void Use() {
    StoreOptions options;
    options.data_dir = dir_;
    options.on_warning = [this](const std::string& line) { warnings_.push_back(line); };
    const auto store = TieredStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    KitModel geometry;
    geometry.head_dim = 1024;
    const KitPrompt prompt{KitTokens(++seed_, 65), {}};
    ASSERT_TRUE(KitPublish(store->get(), geometry.Make(), prompt, {64}).ok());
  }
  // Expects that other users cannot enter the folders in the data folder.
  void ExpectPrivate() {
    for (const char* folder : {"/db", "/tables.tmp"}) EXPECT_EQ(ModeOf(dir_ + folder), 0700u);
  }

  const TestFolder folder_;
  const std::string dir_ = folder_.File("data");
  std::vector<std::string> warnings_;
  uint64_t seed_ = 0;
};

TEST_F(PrivateFolder, ExistingFolderBecomesPrivate) {
  ASSERT_EQ(::mkdir(dir_.c_str(), 0755), 0);
  Use();
  EXPECT_EQ(ModeOf(dir_), 0700u);
  ExpectPrivate();
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(PrivateFolder, StartMakesFoldersPrivate) {
  Use();
  for (const char* folder : {"", "/db", "/tables.tmp"}) {
    ASSERT_EQ(::chmod((dir_ + folder).c_str(), 0755), 0);
  }
  Use();
  EXPECT_EQ(ModeOf(dir_), 0700u);
  ExpectPrivate();
}

TEST_F(PrivateFolder, SetgidFolderKeepsGroupAccess) {
  ASSERT_EQ(::mkdir(dir_.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(dir_.c_str(), 02775), 0);
  Use();
  EXPECT_EQ(ModeOf(dir_), 02770u);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(PrivateFolder, ReadableFolderOfOtherUserWarns) {
  ASSERT_EQ(::mkdir(dir_.c_str(), 0755), 0);
  if (::chown(dir_.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "may not give folders away";
  Use();
  EXPECT_EQ(ModeOf(dir_), 0755u);
  ExpectPrivate();
  EXPECT_THAT(warnings_, Contains(HasSubstr(dir_ + " can be read by every user of this machine "
                                                   "(mode 755, owned by user 12345")));
}

}  // namespace
}  // namespace hearth
