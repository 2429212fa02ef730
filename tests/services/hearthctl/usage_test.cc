// Tests of exit codes and messages of commands that need no server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "bench/simulate/simulate.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CliResult Simulate(const std::vector<std::string>& arguments) {
  return RunCli(arguments, "", false, RunSimulator);
}

TEST(UsageTest, HelpShowsExamplesAndExitsZero) {
  for (const char* command :
       {"generate", "chat", "tokenize", "warm", "explain", "stats", "ls", "pin", "unpin", "drop",
        "model", "export", "import", "verify", "diff"}) {
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
  const CliResult simulate = Simulate({"--help"});
  EXPECT_EQ(simulate.code, kExitOk);
  EXPECT_THAT(simulate.out, AllOf(HasSubstr("Examples:\n"), HasSubstr("--trace")));
  EXPECT_EQ(RunCli({"--help"}).code, kExitOk);
  EXPECT_EQ(RunCli({"--version"}).code, kExitOk);
}

TEST(UsageTest, ProgramWithoutCommandsHasManPage) {
  const CliResult page = Simulate({"--man"});
  EXPECT_EQ(page.code, kExitOk);
  EXPECT_THAT(page.out, AllOf(HasSubstr(".TH HEARTH\\-SIMULATE 1"), HasSubstr("capacity")));
}

TEST(UsageTest, MistypedVariableIsNamed) {
  ASSERT_EQ(::setenv("HEARTHCTL_STOR", "a", 1), 0);
  const CliResult mistyped = RunCli({"verify", HEARTH_GOLDEN_DIR "/tiny.snapshot"});
  ::unsetenv("HEARTHCTL_STOR");
  EXPECT_EQ(mistyped.code, kExitOk) << "a warning";
  EXPECT_THAT(mistyped.err, AllOf(HasSubstr("HEARTHCTL_STOR is not a variable of hearthctl"),
                                  HasSubstr("did you mean HEARTHCTL_STORE?")));
  ASSERT_EQ(::setenv("HEARTHCTL_STORE", "unix:a", 1), 0);
  const CliResult right = RunCli({"verify", HEARTH_GOLDEN_DIR "/tiny.snapshot"});
  ::unsetenv("HEARTHCTL_STORE");
  EXPECT_EQ(right.err, "");
}

TEST(UsageTest, HelpCommandEqualsHelpFlag) {
  const CliResult all = RunCli({"help"});
  EXPECT_EQ(all.code, kExitOk);
  EXPECT_EQ(all.out, RunCli({"--help"}).out);
  EXPECT_EQ(RunCli({"help", "drop"}).out, RunCli({"drop", "--help"}).out);
  EXPECT_EQ(RunCli({"help", "frobnicate"}).code, kExitUsage);
}

TEST(UsageTest, UnknownHostNameIsReported) {
  // Host names under the domain "invalid" never resolve (RFC 6761).
  const CliResult result = RunCli({"ls", "--store", "store.invalid:7080"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, AllOf(HasSubstr("unknown host name store.invalid"),
                                Not(HasSubstr("hearth-store --data-dir"))));
}

TEST(UsageTest, PipeOrEmptyFileIsRefused) {
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
