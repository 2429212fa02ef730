// repair: what it says, and what a store serves after it. Each kind of damage:
// tests/cache_store/disk/repair_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RepairCommandTest : public ::testing::Test {
 protected:
  RepairCommandTest() {
    { const StoreServer server(StoreServer::SmallStore(Data())); }
    const std::string file = folder_.Write("tiny.snapshot", TinyFile());
    EXPECT_EQ(RunCli({"import", file, "--data-dir", Data()}).code, kExitOk);
  }
  std::string Data() const { return folder_.File("data"); }
  void RemoveManifests() {
    for (const auto& entry : fs::directory_iterator(Data() + "/db")) {
      if (absl::StartsWith(entry.path().filename().string(), "MANIFEST-")) fs::remove(entry.path());
    }
  }
  std::string ExportedFrom(const std::string& dir) {
    const Json point = RunCli({"ls", "--data-dir", dir, "--json"}).last();
    const CliResult exported = RunCli({"export", point["restore_point_id"].get<std::string>(),
                                       "--out", folder_.File("again"), "--data-dir", dir});
    EXPECT_EQ(exported.code, kExitOk) << exported.err;
    return folder_.Read("again");
  }

  const TestFolder folder_;
};

TEST_F(RepairCommandTest, AHealthyFolderIsSaidToBeOne) {
  const CliResult result = RunCli({"repair", Data()});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("nothing to repair"), HasSubstr("1 restore points")));
}

TEST_F(RepairCommandTest, ADamagedOneIsRepairedAndSaysWhatToDoNext) {
  RemoveManifests();
  EXPECT_EQ(RunCli({"verify", Data()}).code, kExitFailed);
  const CliResult dry = RunCli({"repair", Data(), "--dry-run"});
  EXPECT_THAT(dry.out, AllOf(HasSubstr("1 restore points can be kept, 0 lost"),
                             HasSubstr("nothing was changed")));
  const CliResult result = RunCli({"repair", Data()});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("MANIFEST"), HasSubstr("1 restore points kept, 0 lost"),
                                HasSubstr("rm -r " + Data() + "/db.damaged-1")));
  EXPECT_EQ(RunCli({"verify", Data()}).code, kExitOk);
  EXPECT_EQ(ExportedFrom(Data()), TinyFile());
}

TEST_F(RepairCommandTest, WhoCannotOpenAFolderNamesTheRepair) {
  fs::remove(Data() + "/db/CURRENT");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"verify", Data()},
        {"ls", "--data-dir", Data()},
        {"backup", "--data-dir", Data(), "--to", folder_.File("backup")}}) {
    const CliResult result = RunCli(command);
    EXPECT_EQ(result.code, kExitFailed);
    EXPECT_THAT(result.err, HasSubstr("hearthctl repair " + Data()));
  }
}

TEST_F(RepairCommandTest, AnotherFolderCanBeMadeOfItAndJsonSaysTheSame) {
  RemoveManifests();
  const CliResult result = RunCli({"repair", Data(), "--to", folder_.File("new"), "--json"});
  ASSERT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.last()["restore_points"], 1);
  EXPECT_EQ(result.last()["lost_points"], 0);
  EXPECT_EQ(result.last()["path"], folder_.File("new"));
  EXPECT_EQ(ExportedFrom(folder_.File("new")), TinyFile());
}

TEST_F(RepairCommandTest, WhatCannotBeRepairedIsRefusedWithTheReason) {
  const CliResult none = RunCli({"repair", folder_.File("none")});
  EXPECT_EQ(none.code, kExitFailed);
  EXPECT_THAT(none.err, HasSubstr("is not a store's data folder"));
  const StoreServer server(StoreServer::SmallStore(Data()));
  const CliResult held = RunCli({"repair", Data()});
  EXPECT_EQ(held.code, kExitFailed);
  EXPECT_THAT(held.err, HasSubstr("stop it"));
}

}  // namespace
}  // namespace hearth
