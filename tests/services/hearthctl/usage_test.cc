// Exit codes and messages that need no server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "services/events/events_program.h"
#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Port 9 is "discard": nothing listens there on a machine that builds this.
constexpr char kNobody[] = "127.0.0.1:9";

CliResult Events(const std::vector<std::string>& arguments) {
  return RunCli(arguments, "", false, RunEventsProgram);
}

TEST(UsageTest, EventsAreNotPublishedWhereNobodyCanListen) {
  const CliResult address = Events({"--zmq", "localhost 5557"});
  EXPECT_EQ(address.code, kExitUsage);
  EXPECT_THAT(address.err, HasSubstr("localhost 5557"));
  const CliResult fingerprint = Events({"--fingerprint", "w1"});
  EXPECT_EQ(fingerprint.code, kExitUsage);
  EXPECT_THAT(fingerprint.err, HasSubstr("0-9 and a-f"));
}

TEST(UsageTest, HelpTeachesWithExamplesAndEndsWithZero) {
  for (const char* command :
       {"generate", "ask", "chat", "tokenize", "warm", "explain", "stats", "ls", "pin", "unpin",
        "drop", "model", "export", "import", "verify", "diff"}) {
    const CliResult result = RunCli({command, "--help"});
    EXPECT_EQ(result.code, kExitOk) << command;
    EXPECT_THAT(result.out, AllOf(HasSubstr("Examples:\n"), HasSubstr("--json"))) << command;
  }
  for (const char* command : {"save", "load"}) {
    const CliResult result = RunCli({"state", command, "--help"});
    EXPECT_EQ(result.code, kExitOk) << command;
    EXPECT_THAT(result.out, AllOf(HasSubstr("Examples:\n"), HasSubstr("--json"))) << command;
    EXPECT_THAT(RunCli({"state", "--help"}).out, HasSubstr(command));
  }
  const CliResult events = Events({"--help"});
  EXPECT_EQ(events.code, kExitOk);
  EXPECT_THAT(events.out, AllOf(HasSubstr("Examples:\n"), HasSubstr("tcp://127.0.0.1:5557")));
  EXPECT_EQ(RunCli({"--help"}).code, kExitOk);
  EXPECT_EQ(RunCli({"--version"}).code, kExitOk);
}

TEST(UsageTest, AWrongCommandLineEndsWithTwo) {
  EXPECT_EQ(RunCli({}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generat"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generate"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generate", "--prompt", "a", "--token-ids", "2"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generate", "--prompt", "a", "--cache", "maybe"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generate", "--prompt", "a", "--deadline", "soon"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generate", "--prompt", "a", "--max-new-tokens", "x"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"drop"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"state"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"state", "keep"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"state", "save", "f"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"drop", "abcdef", "--all"}).code, kExitUsage);
}

TEST(UsageTest, AnUnknownCommandIsNamedAndOneNearItSuggested) {
  const CliResult near = RunCli({"exprot", "abcdef"});
  EXPECT_EQ(near.code, kExitUsage);
  EXPECT_THAT(near.err, AllOf(HasSubstr("\"exprot\""), HasSubstr("did you mean export?")));
  EXPECT_THAT(RunCli({"gen"}).err, HasSubstr("did you mean generate?"));
  const CliResult far = RunCli({"frobnicate", "--json"});
  EXPECT_EQ(far.code, kExitUsage);
  EXPECT_THAT(far.err, AllOf(HasSubstr("\"frobnicate\""), HasSubstr("hearthctl help"),
                             Not(HasSubstr("did you mean"))));
}

TEST(UsageTest, ACommandThatMovedNamesWhatDoesItsWork) {
  for (const auto& [before, now] :
       std::vector<std::pair<std::string, std::string>>{{"simulate", "the program hearth-simulate"},
                                                        {"events", "the program hearth-events"},
                                                        {"inspect", "hearthctl verify"},
                                                        {"fingerprint", "hearthctl model"}}) {
    const CliResult result = RunCli({before, "--json"});
    EXPECT_EQ(result.code, kExitUsage);
    EXPECT_EQ(result.err, "hearthctl: " + before + " is " + now + " now\n");
  }
}

TEST(UsageTest, AProgramWithoutCommandsHasItsManualPage) {
  const CliResult page = Events({"--man"});
  EXPECT_EQ(page.code, kExitOk);
  EXPECT_THAT(page.out, AllOf(HasSubstr(".TH HEARTH\\-EVENTS 1"), HasSubstr("replay\\-batches")));
}

TEST(UsageTest, AMistypedFlagIsNamedWhateverElseFollowsFromIt) {
  const CliResult near = RunCli({"generate", "--promt", "a"});
  EXPECT_EQ(near.code, kExitUsage);
  EXPECT_THAT(near.err, AllOf(HasSubstr("--promt is no flag of generate"),
                              HasSubstr("did you mean --prompt?"), Not(HasSubstr("Exactly 1"))));
  EXPECT_EQ(std::count(near.err.begin(), near.err.end(), '\n'), 1);
  EXPECT_THAT(RunCli({"ls", "--stor=unix:a"}).err,
              AllOf(HasSubstr("--stor is no flag of ls"), HasSubstr("--store")));
  EXPECT_THAT(RunCli({"state", "save", "f", "--prompt", "a", "--jsn"}).err,
              HasSubstr("--jsn is no flag of save; did you mean --json?"));
  EXPECT_THAT(RunCli({"ls", "--frobnicate"}).err,
              AllOf(HasSubstr("--frobnicate is no flag of ls"), Not(HasSubstr("did you mean"))));
}

TEST(UsageTest, AWordTooManyIsNamed) {
  for (const auto& [words, extra, command] :
       std::vector<std::tuple<std::vector<std::string>, std::string, std::string>>{
           {{"generate", "Water", "boils"}, "boils", "generate"},
           {{"pin", "abcdef", "012345"}, "012345", "pin"}}) {
    const CliResult result = RunCli(words);
    EXPECT_EQ(result.code, kExitUsage) << command;
    EXPECT_THAT(result.err,
                HasSubstr("\"" + extra + "\" is one word more than " + command + " takes"));
  }
}

TEST(UsageTest, NoAnswersAndNoBeamsAreRefusedWithTheLimits) {
  for (const char* flag : {"--n", "--beams"}) {
    for (const char* count : {"0", "17"}) {
      const CliResult result = RunCli({"generate", "a", flag, count});
      EXPECT_EQ(result.code, kExitUsage) << flag;
      EXPECT_THAT(result.err, AllOf(HasSubstr(flag), HasSubstr("1"), HasSubstr("16"))) << flag;
    }
  }
}

TEST(UsageTest, HelpHasCommandsInGroupsAndTheExitCodes) {
  const std::string help = RunCli({"--help"}).out;
  for (const char* text :
       {"\nAsk a worker:\n", "\nLook after a store:\n", "\nWithout a server:\n", "0 done; 1 failed",
        "2 wrong usage", "3 the server was not reached", "130 interrupted"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

TEST(UsageTest, AWrongValueEndsWithTwo) {
  EXPECT_EQ(RunCli({"tokenize", "--token-ids", "2,x"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generate", "--prompt", "\xFF"}).code, kExitUsage);
  EXPECT_EQ(RunCli({"generate", "--prompt", "a", "--stop", "\xFF"}).code, kExitUsage);
}

TEST(UsageTest, AMistypedVariableIsNamedAndOneThatIsRightIsNot) {
  ASSERT_EQ(::setenv("HEARTHCTL_STOR", "a", 1), 0);
  const CliResult mistyped = RunCli({"verify", HEARTH_GOLDEN_DIR "/tiny.snapshot"});
  ::unsetenv("HEARTHCTL_STOR");
  EXPECT_EQ(mistyped.code, kExitOk) << "a warning";
  EXPECT_THAT(mistyped.err, AllOf(HasSubstr("HEARTHCTL_STOR is no variable of hearthctl"),
                                  HasSubstr("did you mean HEARTHCTL_STORE?")));
  ASSERT_EQ(::setenv("HEARTHCTL_STORE", "unix:a", 1), 0);
  const CliResult right = RunCli({"verify", HEARTH_GOLDEN_DIR "/tiny.snapshot"});
  ::unsetenv("HEARTHCTL_STORE");
  EXPECT_EQ(right.err, "");
}

TEST(UsageTest, HelpIsACommandToo) {
  const CliResult all = RunCli({"help"});
  EXPECT_EQ(all.code, kExitOk);
  EXPECT_EQ(all.out, RunCli({"--help"}).out);
  EXPECT_EQ(RunCli({"help", "drop"}).out, RunCli({"drop", "--help"}).out);
  EXPECT_EQ(RunCli({"help", "frobnicate"}).code, kExitUsage);
}

TEST(UsageTest, AWrongAddressIsAWrongCommandLine) {
  for (const char* address : {"", "garbage", ":7080", "host:", "host:0", "host:99999", "unix:"}) {
    const CliResult store = RunCli({"ls", "--store", address});
    EXPECT_EQ(store.code, kExitUsage) << address;
    EXPECT_THAT(store.err, AllOf(HasSubstr("--store"), HasSubstr("host:port or unix:PATH")))
        << address;
    EXPECT_EQ(RunCli({"tokenize", "--prompt", "a", "--worker", address}).code, kExitUsage);
  }
}

TEST(UsageTest, AHostThatNobodyIsCalledIsNotToBeStarted) {
  // RFC 6761: never resolves.
  const CliResult result = RunCli({"ls", "--store", "store.invalid:7080"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, AllOf(HasSubstr("no host is called store.invalid"),
                                Not(HasSubstr("hearth-store --data-dir"))));
}

TEST(UsageTest, ChoicesAreWordsAndAWaitIsNotNegative) {
  const CliResult cache = RunCli({"generate", "--prompt", "a", "--cache", "foo"});
  EXPECT_EQ(cache.code, kExitUsage);
  EXPECT_THAT(cache.err, HasSubstr("\"foo\" is not one of default, off, read, write"));
  EXPECT_THAT(cache.err, Not(HasSubstr("->")));
  EXPECT_EQ(RunCli({"ls", "--wait", "-1"}).code, kExitUsage);
}

TEST(UsageTest, AnAddressWithoutAServerIsSaidInOneLineWithAdvice) {
  const CliResult worker = RunCli({"generate", "--worker", kNobody, "--prompt", "a"});
  EXPECT_EQ(worker.code, kExitUnreachable);
  EXPECT_THAT(worker.err, AllOf(HasSubstr("no worker at 127.0.0.1:9"), HasSubstr("hearth-worker"),
                                HasSubstr("--worker")));
  EXPECT_EQ(std::count(worker.err.begin(), worker.err.end(), '\n'), 1);
  const CliResult store = RunCli({"ls", "--store", kNobody});
  EXPECT_EQ(store.code, kExitUnreachable);
  EXPECT_THAT(store.err, HasSubstr("no store at 127.0.0.1:9"));
}

TEST(UsageTest, VerifyShowsTheHeaderOfASnapshotFile) {
  const std::string golden = HEARTH_GOLDEN_DIR "/tiny.snapshot";
  const Json json = RunCli({"verify", golden, "--json"}).last();
  EXPECT_EQ(json["token_count"], 20);
  EXPECT_EQ(json["cuts"], (std::vector<uint32_t>{5, 20}));
  EXPECT_EQ(json["fields"]["layer_types"], "lg");
  EXPECT_THAT(RunCli({"verify", golden}).out, HasSubstr("restore point at 20 tokens"));
}

TEST(UsageTest, VerifyFindsOneChangedByte) {
  TestFolder folder;
  EXPECT_EQ(RunCli({"verify", folder.Write("good", TinyFile())}).code, kExitOk);
  std::string bad = TinyFile();
  bad[700] ^= 1;
  const CliResult result = RunCli({"verify", folder.Write("bad", bad), "--json"});
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_EQ(result.last()["ok"], false);
  EXPECT_THAT(result.err, AllOf(HasSubstr("DATA_LOSS"), HasSubstr("global object [0, 16)")));
  EXPECT_EQ(RunCli({"verify", "/nonexistent"}).code, kExitFailed);
}

TEST(UsageTest, APipeOrAnEmptyFileIsNamedAndNotWaitedFor) {
  TestFolder folder;
  ASSERT_EQ(::mkfifo(folder.File("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::mkdir(folder.File("folder").c_str(), 0700), 0);
  folder.Write("empty", "");
  for (const auto& [name, said] : std::vector<std::pair<std::string, std::string>>{
           {"pipe", "is a pipe, not a file"}, {"empty", "is empty"}}) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"verify", folder.File(name)},
                                               {"diff", folder.File(name), folder.File(name)},
                                               {"import", folder.File(name)}}) {
      const CliResult result = RunCli(command);
      EXPECT_NE(result.code, kExitOk) << command[0];
      EXPECT_THAT(result.err, HasSubstr(name + " " + said)) << command[0];
    }
  }
  EXPECT_THAT(RunCli({"import", folder.File("folder")}).err,
              HasSubstr("folder is a folder, not a file"));
}

}  // namespace
}  // namespace hearth
