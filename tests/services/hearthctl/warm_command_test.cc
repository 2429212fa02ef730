#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

class WarmCommandTest : public ::testing::Test {
 protected:
  CliResult Warm(const std::string& yaml, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {
        "warm",  "--worker", worker_.address(), "--file", folder_.Write("prompts.yaml", yaml),
        "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCli(arguments);
  }

  FakeWorker worker_;
  TestFolder folder_;
};

constexpr char kTwoPrompts[] = R"(
prompts:
  - name: long
    text: "forty characters, more than two chunks.."
    breakpoints: [5]
chats:
  - messages:
      - {role: system, content: "You answer in one short sentence."}
)";

TEST_F(WarmCommandTest, ComputesWhatIsMissingAndNothingTheSecondTime) {
  const CliResult first = Warm(kTwoPrompts);
  ASSERT_EQ(first.code, kExitOk) << first.err;
  EXPECT_EQ(first.last()["coverage"], 1.0);
  EXPECT_EQ(first.last()["entries"], 2);
  EXPECT_GT(first.last()["computed_tokens"], 0);
  EXPECT_EQ(first.objects.at(0)["wanted"], Json({5, 32}));
  EXPECT_EQ(worker_.prefilled.size(), 2u);

  const CliResult second = Warm(kTwoPrompts);
  EXPECT_EQ(second.code, kExitOk);
  EXPECT_EQ(second.last()["computed_tokens"], 0);
  EXPECT_EQ(second.objects.at(0)["outcome"], "already stored");
  EXPECT_EQ(worker_.prefilled.size(), 2u);
}

TEST_F(WarmCommandTest, BelowTheCoverageItFailsAndSaysWhy) {
  worker_.store_works = false;
  const CliResult result = Warm(kTwoPrompts);
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_EQ(result.last()["coverage"], 0.0);
  EXPECT_THAT(result.objects.at(0)["note"].get<std::string>(), HasSubstr("never stored"));
  EXPECT_THAT(result.err, HasSubstr("coverage 0 is below 1"));
  EXPECT_EQ(Warm(kTwoPrompts, {"--min-coverage", "0"}).code, kExitOk);
}

TEST_F(WarmCommandTest, APromptWithoutABoundaryWorthKeepingIsNotComputed) {
  const CliResult result = Warm("prompts:\n  - text: short\n");
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.objects.at(0)["outcome"], "nothing to keep");
  EXPECT_EQ(worker_.prefilled.size(), 0u);
}

TEST_F(WarmCommandTest, PinsNeedAStore) {
  const CliResult result = Warm("prompts:\n  - {text: a, pin: true}\n");
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("--store"));
}

TEST_F(WarmCommandTest, ARefusedPromptIsNamedAndFailsTheRun) {
  worker_.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  const CliResult result = Warm(kTwoPrompts);
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("draining"));
}

}  // namespace
}  // namespace hearth
