// ls, export and import on the folder of a store that does not run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StoppedStoreTest : public ::testing::Test {
 protected:
  StoppedStoreTest() : tiny_(folder_.Write("tiny.snapshot", TinyFile())) {}

  std::string Data() const { return folder_.File("data"); }
  // Makes the folder: a store that had nothing to do.
  void RunAStore(const std::string& secret_file = "") {
    StoreOptions options = StoreServer::SmallStore(Data());
    options.secret_file = secret_file;
    const StoreServer server(options);
  }
  CliResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--data-dir", Data(), "--json"});
    return RunCli(arguments);
  }

  TestFolder folder_;
  const std::string tiny_;
};

TEST_F(StoppedStoreTest, AnImportIsServedByTheStoreThatOpensTheFolderNext) {
  RunAStore();
  const CliResult imported = Run({"import", tiny_});
  ASSERT_EQ(imported.code, kExitOk) << imported.err;
  EXPECT_EQ(imported.last()["durable"], "sync");
  EXPECT_EQ(imported.last()["published_tokens"], 20);
  EXPECT_EQ(Run({"import", tiny_}).last()["bytes_sent"], 0);
  StoreServer server(StoreServer::SmallStore(Data()));
  const Json point = RunCli({"ls", "--store", server.address(), "--json"}).last();
  EXPECT_EQ(point["tokens"], 20) << point;
  const CliResult exported = RunCli({"export", point["restore_point_id"].get<std::string>(),
                                     "--out", folder_.File("again"), "--store", server.address()});
  EXPECT_EQ(exported.code, kExitOk) << exported.err;
  EXPECT_EQ(folder_.Read("again"), TinyFile());
}

TEST_F(StoppedStoreTest, AStoppedStoresPointsAreListedAndExportToTheSameBytes) {
  std::string id;
  {
    StoreServer server(StoreServer::SmallStore(Data()));
    RunCli({"import", tiny_, "--store", server.address()});
    id = RunCli({"ls", "--store", server.address(), "--json"})
             .last()["restore_point_id"]
             .get<std::string>();
  }
  const Json point = Run({"ls"}).last();
  EXPECT_EQ(point["restore_point_id"], id);
  EXPECT_EQ(point["tier"], "disk");
  const CliResult exported = Run({"export", id.substr(0, 8), "--out", folder_.File("again")});
  ASSERT_EQ(exported.code, kExitOk) << exported.err;
  EXPECT_EQ(exported.last()["restore_point_id"], id);
  EXPECT_EQ(folder_.Read("again"), TinyFile());
  EXPECT_THAT(Run({"export", "abcdef", "--out", folder_.File("x")}).err,
              HasSubstr("0 restore points begin with abcdef"));
  EXPECT_THAT(Run({"export", std::string(64, 'a'), "--out", folder_.File("x")}).err,
              HasSubstr("NOT_FOUND"));
}

TEST_F(StoppedStoreTest, TenantsStayApart) {
  RunAStore();
  ASSERT_EQ(Run({"import", tiny_, "--tenant", "a"}).code, kExitOk);
  EXPECT_EQ(Run({"ls"}).objects.size(), 0u);
  EXPECT_EQ(Run({"ls", "--tenant", "a"}).objects.size(), 1u);
}

TEST_F(StoppedStoreTest, AFolderInUseIsRefused) {
  StoreServer server(StoreServer::SmallStore(Data()));
  const CliResult refused = Run({"ls"});
  EXPECT_EQ(refused.code, kExitFailed);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(Data()), HasSubstr("held by another process"),
                                 HasSubstr("--store ADDR")));
}

TEST_F(StoppedStoreTest, NoFolderAndNoSecretAreMade) {
  EXPECT_THAT(Run({"ls"}).err, HasSubstr("is not a store's data folder"));
  EXPECT_EQ(folder_.Files(), 1u) << "the snapshot";
  const std::string secret = folder_.Write("secret", std::string(64, 'a'));
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  RunAStore(secret);
  EXPECT_THAT(Run({"ls"}).err, HasSubstr("--secret-file"));
  EXPECT_FALSE(std::filesystem::exists(Data() + "/secret"));
  EXPECT_EQ(Run({"ls", "--secret-file", secret}).code, kExitOk);
}

}  // namespace
}  // namespace hearth
