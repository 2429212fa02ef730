// What verify and repair make of a folder's promises: what they name and the folder lacks is said,
// and promises of a newer version, or that cannot be read, are no promises of nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "cache_store/promises.h"
#include "cache_store/repair.h"
#include "cache_store/verify.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  std::unique_ptr<TieredStore> Open() const {
    StoreOptions options;
    options.data_dir = Dir();
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    ManualExecutor* executor = nullptr;
    return OpenStore(options, SteppedSeams(&executor)).value();
  }
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
