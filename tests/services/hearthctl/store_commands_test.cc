// The commands that talk to a store, against a real one in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"
#include "tests/services/store/store_server.h"

namespace hearth {
namespace {

using ::testing::AllOf;
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
    return point["restore_point_id"].get<std::string>();
  }

  TestFolder folder_;
  StoreServer server_;
};

TEST_F(StoreCommandsTest, AnImportIsListedAndExportsToTheSameBytes) {
  const std::string id = ImportTiny();
  ASSERT_EQ(id.size(), 64u);
  const CliResult exported =
      Run({"export", id.substr(0, 12), "--out", folder_.File("again.snapshot")});
  ASSERT_EQ(exported.code, kExitOk) << exported.err;
  EXPECT_EQ(exported.last()["bytes"], TinyFile().size());
  EXPECT_EQ(folder_.Read("again.snapshot"), TinyFile());
}

TEST_F(StoreCommandsTest, AnExportReplacesNoFileUnlessForced) {
  const std::string id = ImportTiny();
  const std::string path = folder_.Write("mine", "precious");
  const CliResult refused = Run({"export", id, "--out", path});
  EXPECT_EQ(refused.code, kExitFailed);
  EXPECT_THAT(refused.err, HasSubstr("mine exists: --force replaces it"));
  EXPECT_EQ(folder_.Read("mine"), "precious");
  EXPECT_EQ(Run({"export", id, "--out", path, "--force"}).code, kExitOk);
  EXPECT_EQ(folder_.Read("mine"), TinyFile());
}

TEST_F(StoreCommandsTest, ImportingAgainSendsNothing) {
  ImportTiny();
  const CliResult again = Run({"import", folder_.File("tiny.snapshot")});
  EXPECT_EQ(again.code, kExitOk) << again.err;
  EXPECT_EQ(again.last()["bytes_sent"], 0);
}

TEST_F(StoreCommandsTest, APinnedRestorePointIsDroppedOnlyByForce) {
  const std::string id = ImportTiny();
  EXPECT_EQ(Run({"pin", id}).last()["pinned"], true);
  const CliResult refused = Run({"drop", "--all"});
  EXPECT_EQ(refused.code, kExitFailed);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("1 pinned here: " + id.substr(0, 16)), HasSubstr("by force")));
  EXPECT_EQ(Run({"unpin", id.substr(0, 8)}).last()["pinned"], false);
  EXPECT_EQ(Run({"drop", id}).last()["dropped"], 1);
  EXPECT_EQ(Run({"ls"}).objects.size(), 0u);
}

TEST_F(StoreCommandsTest, DroppingOnePinnedPointFailsAndSaysWhy) {
  const std::string id = ImportTiny();
  Run({"pin", id});
  const CliResult kept = Run({"drop", id});
  EXPECT_EQ(kept.code, kExitFailed);
  EXPECT_THAT(kept.err, AllOf(HasSubstr("is pinned"), HasSubstr("--force")));
  EXPECT_EQ(kept.last()["kept_pinned"], 1);
  EXPECT_EQ(Run({"drop", id, "--force"}).code, kExitOk);
  EXPECT_EQ(Run({"drop", "--all"}).code, kExitOk);
  EXPECT_EQ(Run({"ls"}).objects.size(), 0u);
}

TEST_F(StoreCommandsTest, AnExportIsCountedAsOneAndNotAsAHit) {
  const std::string id = ImportTiny();
  for (int i = 0; i < 3; ++i) Run({"export", id, "--out", folder_.File("out"), "--force"});
  const Json stats = Run({"stats"}).last();
  EXPECT_EQ(stats["counters"]["exports"], 3);
  EXPECT_EQ(stats["counters"]["hits"], 0);
  EXPECT_EQ(stats["counters"]["fetches"], 0);
  EXPECT_EQ(Run({"ls"}).last()["hits"], 0);
}

TEST_F(StoreCommandsTest, ThePeersOfTwoKindsAreToldApart) {
  FakeWorker worker;
  const CliResult no_store = RunCli({"ls", "--store", worker.address()});
  EXPECT_EQ(no_store.code, kExitFailed);
  EXPECT_THAT(no_store.err, AllOf(HasSubstr(worker.address() + " is no store"),
                                  HasSubstr("it is a worker"), HasSubstr("--store ADDR")));
  const CliResult no_worker = RunCli({"tokenize", "--prompt", "a", "--worker", server_.address()});
  EXPECT_EQ(no_worker.code, kExitFailed);
  EXPECT_THAT(no_worker.err, AllOf(HasSubstr(server_.address() + " is no worker"),
                                   HasSubstr("it is a store"), HasSubstr("--worker ADDR")));
}

TEST_F(StoreCommandsTest, TheLastScrubIsATimeThatAPersonCanRead) {
  // The first pass begins with the store, and there is nothing to read.
  while (Run({"stats"}).last()["counters"]["last_full_scrub_unix_s"] == 0) {
  }
  const CliResult human = RunCli({"stats", "--store", server_.address()});
  EXPECT_THAT(human.out, ContainsRegex("last_full_scrub 20[0-9-]+ [0-9:]+ UTC"));
  EXPECT_THAT(human.out, Not(HasSubstr("unix_s")));
}

TEST_F(StoreCommandsTest, StatsCountWhatIsStored) {
  ImportTiny();
  const Json stats = Run({"stats"}).last();
  EXPECT_EQ(stats["restore_points"], 1);
  EXPECT_EQ(stats["objects"], 4);
  EXPECT_GT(stats["tiers"].size(), 0u);
}

TEST_F(StoreCommandsTest, WatchShowsWhatIsStoredAndThenEveryChange) {
  const std::string id = ImportTiny();
  const CliResult once = Run({"watch", "--once"});
  ASSERT_EQ(once.code, kExitOk) << once.err;
  ASSERT_EQ(once.objects.size(), 3u) << once.out;
  EXPECT_EQ(once.objects[0]["kind"], "start");
  EXPECT_EQ(once.objects[1]["kind"], "snapshot");
  EXPECT_EQ(once.objects[1]["restore_point"]["restore_point_id"], id);
  EXPECT_EQ(once.last()["kind"], "snapshot_end");
  Run({"drop", id});
  const std::string incarnation = JsonLine(once.last()["incarnation"]);
  const CliResult since = Run({"watch", "--since", "1", "--incarnation", incarnation, "--once"});
  ASSERT_EQ(since.objects.size(), 3u) << since.out;
  EXPECT_EQ(since.objects[0]["resumed"], true);
  EXPECT_EQ(since.objects[1]["kind"], "dropped");
  EXPECT_EQ(since.objects[1]["reason"], "dropped");
  EXPECT_EQ(since.last()["sequence"], 2);
  EXPECT_THAT(Run({"watch", "--since", "1"}).err, HasSubstr("--since needs --incarnation"));
}

TEST_F(StoreCommandsTest, AWatchThatCannotGoOnSaysSo) {
  ImportTiny();
  const CliResult human = RunCli(
      {"watch", "--since", "3", "--incarnation", "1", "--once", "--store", server_.address()});
  EXPECT_EQ(human.code, kExitOk) << human.err;
  EXPECT_THAT(human.out, HasSubstr("cannot go on after change 3 of incarnation 1"));
}

TEST_F(StoreCommandsTest, WatchEndsWithTheStoreAndSaysSo) {
  server_.admission()->Close();
  const CliResult refused = Run({"watch"});
  EXPECT_EQ(refused.code, kExitFailed) << "it was reached";
  EXPECT_THAT(refused.err, HasSubstr("UNAVAILABLE"));
}

TEST_F(StoreCommandsTest, WatchReadsWell) {
  ImportTiny();
  Run({"pin", Run({"ls"}).last()["restore_point_id"].get<std::string>()});
  const CliResult human = RunCli({"watch", "--once", "--store", server_.address()});
  EXPECT_EQ(human.code, kExitOk) << human.err;
  EXPECT_THAT(human.out, AllOf(HasSubstr("watching from change 2"), HasSubstr("is stored"),
                               HasSubstr("pinned"), HasSubstr("up to date")));
}

TEST_F(StoreCommandsTest, AnUnknownOrBadIdIsRefused) {
  EXPECT_THAT(Run({"pin", "zz"}).err, HasSubstr("6 to 64 hexadecimal digits"));
  EXPECT_THAT(Run({"pin", "abcdef"}).err, HasSubstr("0 restore points begin with abcdef"));
  const CliResult unknown = Run({"export", std::string(64, 'a'), "--out", folder_.File("x")});
  EXPECT_EQ(unknown.code, kExitFailed);
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND"));
}

TEST_F(StoreCommandsTest, ImportComparesWithTheRunningModelAndNamesTheField) {
  FakeWorker worker;
  std::vector<FingerprintField> fields = TinyFields();
  fields.back().value = uint64_t{9};  // window
  Manifest manifest = TinyManifest();
  manifest.fingerprint = Fingerprint::Create(fields)->digest();
  std::string file = BuildSnapshotHeader(*Fingerprint::Create(fields), manifest).value();
  const SnapshotHeader header = ParseSnapshotHeader(file).value();
  for (size_t i = 0; i < header.slice_offsets.size(); ++i) {
    file.resize(header.slice_offsets[i], '\0');
    file += TinySlice(i, header.layout.SliceBytes(header.manifest.objects[i].id.tokens));
  }
  const CliResult result =
      Run({"import", folder_.Write("other.snapshot", file), "--worker", worker.address()});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("window"),
                                HasSubstr("saved \"9\""), HasSubstr("running \"8\"")));
  EXPECT_EQ(Run({"ls"}).objects.size(), 0u);
}

TEST_F(StoreCommandsTest, ACorruptFileIsNotImported) {
  std::string file = TinyFile();
  file[file.size() - 1] ^= 1;
  const CliResult result = Run({"import", folder_.Write("bad.snapshot", file)});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, AllOf(HasSubstr("DATA_LOSS"), HasSubstr("bad.snapshot")));
  EXPECT_EQ(Run({"ls"}).objects.size(), 0u);
}

TEST_F(StoreCommandsTest, ADataFolderIsVerifiedOffline) {
  ImportTiny();
  const CliResult result = RunCli({"verify", folder_.File("data"), "--json"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.last()["restore_points"], 1);
  EXPECT_EQ(result.last()["slices"], 4);
  EXPECT_EQ(result.last()["ok"], true);
}

}  // namespace
}  // namespace hearth
