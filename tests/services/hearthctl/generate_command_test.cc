#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST(GenerateCommandTest, TooLongRequestErrorNamesLimit) {
  FakeWorker worker;
  const TestFolder folder;
  const std::string path = folder.Write("long.txt", std::string(10'000'000, 'a'));
  const CliResult result =
      RunCli({"generate", "--worker", worker.address(), "--prompt-file", path});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("the request is too large: a worker takes at most 3 MiB"));
}

TEST(GenerateCommandTest, WrongInputErrorNamesFile) {
  FakeWorker worker;
  const TestFolder folder;
  const std::string empty = folder.Write("empty", ""), blank = folder.Write("blank", " \n");
  const std::string words = folder.Write("words", "a b");
  const auto error_of = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"generate", "--worker", worker.address()});
    const CliResult result = RunCli(flags);
    EXPECT_EQ(result.code, kExitUsage) << result.err;
    return result.err;
  };
  for (const std::string& path : {empty, blank}) {
    EXPECT_THAT(error_of({"--prompt", "a", "--json-schema", path}),
                HasSubstr(absl::StrCat("--json-schema: ", path, " is empty")));
  }
  EXPECT_THAT(error_of({"--prompt-file", empty}), HasSubstr(empty + " is empty"));
  EXPECT_THAT(error_of({"--chat", empty}), HasSubstr(empty + ": the chat: must be JSON"));
  EXPECT_THAT(error_of({"--token-ids-file", empty}), HasSubstr(empty + ": token_ids is empty"));
  EXPECT_THAT(error_of({"--token-ids-file", words}),
              HasSubstr(words + ": token_ids[0] must be a token id"));
  EXPECT_TRUE(worker.generated.empty());
}

TEST(GenerateCommandTest, DeadlineFlagSetsRpcDeadline) {
  FakeWorker worker;
  const std::vector<std::pair<std::string, absl::Duration>> deadlines = {
      {"600s", absl::Seconds(600)},
      {"600000ms", absl::Seconds(600)},
      {"1h10m", absl::Minutes(70)},
      {"600", absl::Seconds(600)}};
  for (const auto& [text, time] : deadlines) {
    worker.deadlines.clear();
    const absl::Time before = absl::Now();
    const CliResult result =
        RunCli({"generate", "--worker", worker.address(), "--prompt", "hi", "--deadline", text});
    EXPECT_EQ(result.code, kExitOk) << result.err;
    ASSERT_EQ(worker.deadlines.size(), 1u) << text;
    // gRPC rounds deadlines, so allow a difference.
    EXPECT_GE(worker.deadlines[0], before + time - absl::Seconds(10)) << text;
    EXPECT_LE(worker.deadlines[0], absl::Now() + time + absl::Seconds(10)) << text;
  }
  EXPECT_EQ(RunCli({"generate", "--worker", worker.address(), "--prompt", "hi"}).code, kExitOk);
  EXPECT_GT(worker.deadlines.back(), absl::Now() + absl::Hours(1000));
}

}  // namespace
}  // namespace hearth
