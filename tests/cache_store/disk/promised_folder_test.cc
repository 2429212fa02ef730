// Verify and repair read a folder's promises: they report points that these name and the folder
// lacks, and promises that are newer or unreadable do not count as no promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "cache_store/disk/promises/promises.h"
#include "cache_store/disk/repair/repair.h"
#include "cache_store/disk/verify.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Whose promises cannot be opened, or not even be looked for.
class UnreadablePromises : public rocksdb::FileSystemWrapper {
 public:
  explicit UnreadablePromises(const char* why)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), why_(why) {}
  const char* Name() const override { return "UnreadablePromises"; }
  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* out,
                                      rocksdb::IODebugContext* dbg) override {
    if (absl::EndsWith(path, "/promises")) return rocksdb::IOStatus::IOError(path, why_);
    return target()->NewSequentialFile(path, options, out, dbg);
  }
  rocksdb::IOStatus FileExists(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override {
    if (absl::EndsWith(path, "/promises")) return rocksdb::IOStatus::IOError(path, why_);
    return target()->FileExists(path, options, dbg);
  }

 private:
  const char* const why_;
};

class PromisedFolder : public ::testing::Test {
 protected:
  // One restore point in tables, one that was dropped, four in the log.
  PromisedFolder() {
    {
      const auto store = Open();
      Publish(store.get(), 1);
      Publish(store.get(), 2);
      const RestorePoint dropped = store->List("default").at(0);
      EXPECT_TRUE(store->Drop(dropped.id, "default", true).ok());
    }
    RawDatabase(Dir()).Flush();
    const auto store = Open();
    for (uint64_t seed = 3; seed <= 6; ++seed) Publish(store.get(), seed);
  }
  static void Publish(TieredStore* store, uint64_t seed) {
    const KitPrompt prompt = {KitTokens(seed, 65), {}};
    EXPECT_TRUE(KitPublish(store, KitModel().Make(), prompt, {64}).ok());
  }
  absl::StatusOr<std::unique_ptr<TieredStore>> TryToOpen(rocksdb::Env* env = nullptr) const {
    StoreOptions options;
    options.data_dir = Dir();
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    ManualExecutor* executor = nullptr;
    StoreSeams seams = SteppedSeams(&executor);
    seams.disk_env = env;
    return OpenStore(options, std::move(seams));
  }
  std::unique_ptr<TieredStore> Open() const { return TryToOpen().value(); }
  std::string Dir() const { return folder_.File("data"); }
  std::string Promises() const { return PromisesPath(Dir()); }
  void RemoveLogs() const {
    for (const auto& entry : fs::directory_iterator(Dir() + "/db")) {
      if (entry.path().extension() == ".log") fs::remove(entry.path());
    }
  }
  VerifyReport Verified() const {
    const absl::StatusOr<VerifyReport> report = VerifyDataDir(Dir());
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(VerifyReport());
  }

  const TestFolder folder_;
};

TEST_F(PromisedFolder, VerifySaysWhatIsMissedAsTheStartWould) {
  EXPECT_TRUE(Verified().ok());
  EXPECT_EQ(Verified().restore_points, 5u);
  RemoveLogs();
  const VerifyReport report = Verified();
  EXPECT_FALSE(report.ok());
  EXPECT_TRUE(report.is_whole());
  EXPECT_EQ(report.missing_points, 4u);
  EXPECT_THAT(
      report.problems,
      ElementsAre(AllOf(HasSubstr("4 restore points that were acknowledged are not there: "),
                        HasSubstr("(64 tokens), "), HasSubstr(" and others"))));
  // The start gives them up.
  Open();
  EXPECT_TRUE(Verified().ok());
}

// It reads a damaged log no further than RocksDB does, and says that a start does.
TEST_F(PromisedFolder, VerifySaysWhatCanBeReadBehindDamageOfALog) {
  for (const auto& entry : fs::directory_iterator(Dir() + "/db")) {
    if (entry.path().extension() != ".log" || entry.file_size() == 0) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const char byte = static_cast<char>(file.seekg(60).get());
    file.seekp(60).put(static_cast<char>(byte ^ 4));
  }
  const VerifyReport report = Verified();
  EXPECT_TRUE(report.is_whole());
  EXPECT_EQ(report.missing_points, 4u);
  EXPECT_THAT(report.problems,
              Contains(AllOf(HasSubstr(".log is damaged: behind that "), Not(HasSubstr(" 0 rec")),
                             HasSubstr(" records can still be read"))));
  EXPECT_EQ(Open()->List("default").size(), 5u);
  EXPECT_TRUE(Verified().ok());
}

TEST_F(PromisedFolder, VerifySaysThatPromisesAreDamagedOrGone) {
  std::fstream(Promises(), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(2 * kPromiseBytes + 20)
      .put('x');
  EXPECT_THAT(Verified().problems, ElementsAre(HasSubstr("promises is damaged: 1 of its entries")));
  fs::remove(Promises());
  EXPECT_THAT(Verified().problems, ElementsAre(HasSubstr("promises cannot be read")));
  // In which a repair has nothing to do.
  EXPECT_TRUE(RepairDataDir(Dir(), {}).value().was_healthy);
}

// Rot that a store met in its own file, and wrote that anew since.
TEST_F(PromisedFolder, WhatRottedUnderAStoreIsSaidOnceByVerifyAndTheNextStart) {
  PromiseEntry rotted;
  rotted.kind = PromiseKind::kForgot;
  rotted.level = PromiseLevel::kDisk;
  rotted.tokens = 2;
  std::ofstream(Promises(), std::ios::binary | std::ios::app) << SerializePromise(rotted);
  EXPECT_THAT(Verified().problems, ElementsAre(HasSubstr("promises is damaged: 2 of its entries")));
  const auto damage = [this] { return Open()->Stats().counters.at("recovery_damage"); };
  EXPECT_EQ(damage(), 1u);
  EXPECT_TRUE(Verified().ok());
  EXPECT_EQ(damage(), 0u);
}

// Each read of a start in turn: what is lost it says, or fails, and the next one says it.
TEST_F(PromisedFolder, AReadThatFailsMakesNoFolderNew) {
  RemoveLogs();
  fs::rename(Dir(), folder_.File("whole"));
  int struck = 0, refused = 0;
  for (int nth = 1; nth <= 400; ++nth) {
    SCOPED_TRACE(nth);
    fs::remove_all(Dir());
    fs::copy(folder_.File("whole"), Dir(), fs::copy_options::recursive);
    FaultyDisk disk;
    disk.Arm(DiskFault::kFailedRead, nth);
    uint64_t lost = 0;
    {
      const auto opened = TryToOpen(disk.env());
      if (disk.struck() == 0) break;
      if (opened.ok()) lost += (*opened)->Stats().counters.at("recovery_lost_restore_points");
      refused += opened.ok() ? 0 : 1;
    }
    ++struck;
    lost += Open()->Stats().counters.at("recovery_lost_restore_points");
    EXPECT_EQ(lost, 4u);
  }
  EXPECT_GT(struck, 5);
  EXPECT_GT(refused, 0);
}

TEST_F(PromisedFolder, PromisesThatAnotherUserOwnsStopTheStart) {
  const std::string before = folder_.Read("data/promises");
  const auto env =
      rocksdb::NewCompositeEnv(std::make_shared<UnreadablePromises>("Permission denied"));
  const absl::Status refused = TryToOpen(env.get()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("data/promises: Permission denied"), HasSubstr("chown -R")));
  EXPECT_TRUE(folder_.Read("data/promises") == before);
}

TEST_F(PromisedFolder, PromisesOnABadDiskAreSetAsideAndErasedByNobody) {
  const std::string before = folder_.Read("data/promises");
  const auto env =
      rocksdb::NewCompositeEnv(std::make_shared<UnreadablePromises>("Input/output error"));
  EXPECT_EQ(TryToOpen(env.get()).value()->Stats().counters.at("recovery_damage"), 1u);
  EXPECT_TRUE(folder_.Read("data/promises.unreadable") == before);
  EXPECT_EQ(Open()->List("default").size(), 5u);
  // Where the version is lost too, nobody can tell whether there are any: it is not a new folder.
  RawDatabase(Dir()).Delete("meta", "format_version");
  EXPECT_TRUE(absl::IsUnavailable(TryToOpen(env.get()).status()));
}

TEST_F(PromisedFolder, PromisesOfANewerVersionAreReadByNobody) {
  PromiseEntry header = PromisesHeader();
  header.number = kPromisesVersion + 1;
  const std::string newer = SerializePromise(header) + folder_.Read("data/promises");
  std::ofstream(Promises(), std::ios::binary) << newer;
  fs::remove(Dir() + "/db/CURRENT");
  const absl::Status repaired = RepairDataDir(Dir(), {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(repaired)) << repaired;
  EXPECT_THAT(std::string(repaired.message()),
              AllOf(HasSubstr("promises has format version 2"), HasSubstr("newer program")));
  EXPECT_EQ(folder_.Read("data/promises"), newer);
  fs::copy_file(Dir() + "/db/IDENTITY", Dir() + "/db/CURRENT");
  const absl::Status verified = VerifyDataDir(Dir()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(verified)) << verified;
  EXPECT_THAT(std::string(verified.message()), HasSubstr("promises has format version 2"));
}

TEST_F(PromisedFolder, ARepairDoesNotGuessWhatPromisesSayThatCannotBeRead) {
  fs::rename(Promises(), folder_.File("kept"));
  fs::create_directory(Promises());
  fs::remove(Dir() + "/db/CURRENT");
  const absl::Status refused = RepairDataDir(Dir(), {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("promises cannot be read: "), HasSubstr("what was dropped")));
  fs::remove(Promises());
  fs::rename(folder_.File("kept"), Promises());
  EXPECT_EQ(RepairDataDir(Dir(), {}).value().restore_points, 5u);
}

}  // namespace
}  // namespace hearth
