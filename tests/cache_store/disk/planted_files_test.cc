// Pipes and symbolic links in a data folder or a backup: a start does not block on pipes, and does
// not follow links out of the folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/secret.h"
#include "cache_store/disk/backup.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/verify.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class PlantedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Start(dir_).ok());
    outside_ = folder_.File("outside");
    ASSERT_EQ(::mkdir(outside_.c_str(), 0700), 0);
    folder_.Write("outside/kept", "kept");
    fs::create_directory(outside_ + "/inner");
  }
  void TearDown() override {
    EXPECT_EQ(folder_.Read("outside/kept"), "kept");
    EXPECT_TRUE(fs::is_directory(outside_ + "/inner"));
    EXPECT_EQ(std::distance(fs::directory_iterator(outside_), fs::directory_iterator()), 2);
  }
  static absl::Status Start(const std::string& dir) {
    StoreOptions options;
    options.data_dir = dir;
    return TieredStore::Open(options).status();
  }
  static void ExpectNamed(const absl::Status& status, const std::string& path,
                          const std::string& kind) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_THAT(std::string(status.message()), HasSubstr("it is " + kind));
  }
  // Expects that a start, a verification and a backup refuse the entry `name`.
  void ExpectRefused(const std::string& name, const std::string& kind) {
    const std::string path = dir_ + "/" + name;
    ExpectNamed(Start(dir_), path, kind);
    ExpectNamed(VerifyDataDir(dir_).status(), path, kind);
    ExpectNamed(BackUpDataDir(dir_, folder_.File("backup")).status(), path, kind);
  }

  const TestFolder folder_;
  const std::string dir_ = folder_.File("data");
  std::string outside_;
};

TEST_F(PlantedFiles, SymlinkedFolderIsRefused) {
  for (const std::string name : {"tables.tmp", "db"}) {
    fs::rename(dir_ + "/" + name, folder_.File("aside"));
    fs::create_directory_symlink(outside_, dir_ + "/" + name);
    ExpectRefused(name, "a symbolic link");
    fs::remove(dir_ + "/" + name);
    fs::rename(folder_.File("aside"), dir_ + "/" + name);
  }
  EXPECT_TRUE(Start(dir_).ok());
}

// The link's target is the real database: an operator who follows the message must not delete it.
TEST_F(PlantedFiles, LinkedDatabaseErrorAdvisesMovingTarget) {
  fs::rename(dir_ + "/db", folder_.File("elsewhere"));
  fs::create_directory_symlink(folder_.File("elsewhere"), dir_ + "/db");
  const std::string message(Start(dir_).message());
  EXPECT_THAT(message, HasSubstr("move it here in place of the link, or mount it here"));
  EXPECT_THAT(message, Not(HasSubstr("remove")));
  fs::remove(dir_ + "/db");
  fs::rename(folder_.File("elsewhere"), dir_ + "/db");
  EXPECT_TRUE(Start(dir_).ok());
}

TEST_F(PlantedFiles, SymlinkedFileIsRefused) {
  for (const std::string name : {"points", "reserve", "db/CURRENT", "db/000999.log"}) {
    const std::string path = dir_ + "/" + name, aside = folder_.File("aside");
    const bool is_there = fs::exists(path);
    if (is_there) fs::rename(path, aside);
    fs::create_symlink(outside_ + "/kept", path);
    ExpectRefused(name, "a symbolic link");
    fs::remove(path);
    if (is_there) fs::rename(aside, path);
  }
  EXPECT_TRUE(Start(dir_).ok());
}

TEST_F(PlantedFiles, PipeInDataFolderIsRefused) {
  for (const std::string name : {"points", "reserve", "db/CURRENT", "db/LOCK", "db/000999.sst"}) {
    const std::string path = dir_ + "/" + name, aside = folder_.File("aside");
    const bool is_there = fs::exists(path);
    if (is_there) fs::rename(path, aside);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    ExpectRefused(name, "a pipe");
    fs::remove(path);
    if (is_there) fs::rename(aside, path);
  }
  EXPECT_TRUE(Start(dir_).ok());
}

TEST_F(PlantedFiles, PipeAsSecretFileIsRefused) {
  const std::string path = dir_ + "/secret";
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ExpectNamed(Start(dir_), path, "a pipe");
  ExpectNamed(BackUpDataDir(dir_, folder_.File("backup")).status(), path, "a pipe");
  StoreOptions options;
  options.secret_file = path;
  ExpectNamed(TieredStore::Open(options).status(), path, "a pipe");
}

TEST_F(PlantedFiles, StartDeletesLinksButNotTheirTargets) {
  fs::create_directory_symlink(outside_, dir_ + "/tables.tmp/left");
  fs::create_symlink(outside_ + "/kept", dir_ + "/tables.tmp/try");
  EXPECT_TRUE(Start(dir_).ok());
  EXPECT_TRUE(fs::is_empty(dir_ + "/tables.tmp"));
}

TEST_F(PlantedFiles, DataFolderMayBeSymbolicLink) {
  fs::create_directory_symlink(dir_, folder_.File("link"));
  EXPECT_TRUE(Start(folder_.File("link")).ok());
}

TEST_F(PlantedFiles, BackupIntoSymlinkIsRefused) {
  const std::string to = folder_.File("backup");
  ASSERT_TRUE(BackUpDataDir(dir_, to).ok());
  fs::rename(to + "/private", folder_.File("aside"));
  fs::create_directory_symlink(outside_, to + "/private");
  ExpectNamed(BackUpDataDir(dir_, to).status(), to + "/private", "a symbolic link");
  fs::remove(to + "/private");
  fs::create_directory_symlink(folder_.File("aside"), to + "/private");
  EXPECT_TRUE(RestoreDataDir(to, folder_.File("restored"), 0).ok()) << "reading follows links";
}

TEST_F(PlantedFiles, PipeInBackupIsRefused) {
  const std::string from = folder_.File("backup");
  ASSERT_TRUE(BackUpDataDir(dir_, from).ok());
  ASSERT_EQ(::mkfifo((from + "/meta/2").c_str(), 0600), 0);
  ExpectNamed(RestoreDataDir(from, folder_.File("restored"), 0).status(), from + "/meta/2",
              "a pipe");
  ExpectNamed(BackUpDataDir(dir_, from).status(), from + "/meta/2", "a pipe");
}

// The test's folder has no list permission, like lost+found.
TEST(CheckTree, FoldersWithoutListPermissionAreSkipped) {
  const TestFolder folder;
  const std::string dir = folder.File("tree");
  ASSERT_EQ(::mkdir(dir.c_str(), 0755), 0);
  for (int i = 0; i < 16; ++i) ASSERT_EQ(::mkdir(absl::StrCat(dir, "/closed", i).c_str(), 0), 0);
  ASSERT_EQ(::mkdir((dir + "/open").c_str(), 0755), 0);
  fs::permissions(fs::path(dir).parent_path(), fs::perms(0755));
  const uid_t user = ::geteuid();
  const absl::Cleanup be_user = [&] {
    EXPECT_EQ(::seteuid(user), 0);
    for (int i = 0; i < 16; ++i) fs::remove(absl::StrCat(dir, "/closed", i));
  };
  ASSERT_EQ(::mkfifo((dir + "/open/pipe").c_str(), 0600), 0);
  if (user == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  EXPECT_THAT(std::string(CheckTree(dir, false).message()), HasSubstr(dir + "/open/pipe"));
}

}  // namespace
}  // namespace hearth
