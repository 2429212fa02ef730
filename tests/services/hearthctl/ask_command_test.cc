#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr char kContext[] = "The light was lit in 1801.";
constexpr char kThreeQuestions[] =
    "{\"id\": \"who\", \"question\": \"Who?\", \"kind\": \"names\"}\n"
    "{\"id\": \"when\", \"question\": \"When?\", \"kind\": \"dates\"}\n"
    "{\"id\": \"end\", \"ending\": \" In 1802\", \"kind\": \"dates\"}\n";

class AskCommandTest : public ::testing::Test {
 protected:
  CliResult Ask(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"ask",
                                          "--worker",
                                          worker_.address(),
                                          "--context",
                                          folder_.Write("context.txt", kContext),
                                          "--questions",
                                          folder_.Write("questions.jsonl", kThreeQuestions)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCli(arguments);
  }

  // What was asked of the worker, prompt by prompt.
  std::vector<std::string> Asked() {
    std::vector<std::string> prompts;
    for (const v1::GenerateRequest& request : worker_.generated) {
      prompts.push_back(TextOf(request.prompt()));
    }
    return prompts;
  }
  static std::string TextOf(const v1::PromptInput& prompt) {
    return {prompt.token_ids().ids().begin(), prompt.token_ids().ids().end()};
  }

  FakeWorker worker_;
  TestFolder folder_;
};

TEST_F(AskCommandTest, KeepsTheContextOnceAndAsksEachQuestionBehindIt) {
  const CliResult result = Ask({"--max-new-tokens", "5", "--stop", ".", "--durability", "disk"});
  ASSERT_EQ(result.code, kExitOk) << result.err;
  ASSERT_EQ(worker_.prefilled.size(), 1u);
  const std::string shared = TextOf(worker_.prefilled[0].prompt());
  EXPECT_EQ(shared, kContext);
  EXPECT_THAT(worker_.prefilled[0].prompt().breakpoints(), ElementsAre(shared.size()));
  EXPECT_EQ(worker_.prefilled[0].durability(), v1::DURABILITY_DISK);
  EXPECT_THAT(Asked(),
              UnorderedElementsAre(shared + "\n\nQuestion: Who?\nAnswer:",
                                   shared + "\n\nQuestion: When?\nAnswer:", shared + " In 1802"));
  for (const v1::GenerateRequest& request : worker_.generated) {
    EXPECT_THAT(request.prompt().breakpoints(), ElementsAre(shared.size()));
    EXPECT_EQ(request.cache(), v1::CACHE_MODE_READ) << "its end is not kept";
    EXPECT_EQ(request.max_new_tokens(), 5u);
    EXPECT_THAT(request.stop(), ElementsAre("."));
  }
}

}  // namespace
}  // namespace hearth
