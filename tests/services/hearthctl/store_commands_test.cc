// Tests of commands that call a store. The store runs in the test's process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class StoreCommandsTest : public ::testing::Test {
 protected:
  StoreCommandsTest() : server_(StoreServer::SmallStore(folder_.File("data"))) {}

  CliResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--store", server_.address(), "--json"});
    return RunCli(arguments);
  }
  std::string ImportTiny() {
    const CliResult result = Run({"import", folder_.Write("tiny.snapshot", TinyFile())});
    EXPECT_EQ(result.code, kExitOk) << result.err;
    EXPECT_EQ(result.last()["published_tokens"], 20);
    const Json point = Run({"ls"}).last();
    EXPECT_EQ(point["tokens"], 20) << point;
    return point["id"].get<std::string>();
  }

  TestFolder folder_;
  StoreServer server_;
};

TEST_F(StoreCommandsTest, ExportIsNotCountedAsHit) {
  const std::string id = ImportTiny();
  for (int i = 0; i < 3; ++i) Run({"export", id, "--out", folder_.File("out"), "--force"});
  const Json stats = Run({"stats"}).last();
  EXPECT_EQ(stats["counters"]["exports"], 3);
  EXPECT_EQ(stats["counters"]["hits"], 0);
  EXPECT_EQ(stats["counters"]["fetches"], 0);
  EXPECT_EQ(Run({"ls"}).last()["hits"], 0);
}

TEST_F(StoreCommandsTest, LastScrubTimeIsReadable) {
  // Wait for the first scrub, which starts when the store opens and finds nothing to read.
  while (Run({"stats"}).last()["counters"]["last_full_scrub_unix_s"] == 0) {
  }
  const CliResult human = RunCli({"stats", "--store", server_.address()});
  EXPECT_THAT(human.out, ContainsRegex("last_full_scrub 20[0-9-]+ [0-9:]+ UTC"));
  EXPECT_THAT(human.out, Not(HasSubstr("unix_s")));
}

TEST_F(StoreCommandsTest, ListShowsPublishHints) {
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 33), {}};
  PublishSpec spec = KitSpec(model, prompt, {32});
  spec.hint = {600, -3};
  auto session = server_.store()->Publish(spec);
  ASSERT_TRUE(session.ok() && KitPutAll(session->get(), spec, model, prompt).ok());
  ASSERT_TRUE((*session)->Commit().ok());
  const Json point = Run({"ls"}).last();
  EXPECT_EQ(point["priority"], -3);
  EXPECT_GT(point["kept_s"], 300);
  EXPECT_LE(point["kept_s"], 600);
  const CliResult human = RunCli({"ls", "--store", server_.address()});
  EXPECT_THAT(human.out, ContainsRegex("left +kept +priority .*\n.* -  +[0-9.]+ min +-3 "));
}

TEST_F(StoreCommandsTest, StatsCountStoredObjects) {
  ImportTiny();
  const Json stats = Run({"stats"}).last();
  EXPECT_EQ(stats["restore_points"], 1);
  EXPECT_EQ(stats["objects"], 4);
  EXPECT_GT(stats["tiers"].size(), 0u);
}

}  // namespace
}  // namespace hearth
