#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr char kContext[] = "The light was lit in 1801.";
constexpr char kThreeQuestions[] =
    "{\"id\": \"who\", \"question\": \"Who?\", \"kind\": \"names\"}\n"
    "{\"id\": \"when\", \"question\": \"When?\", \"kind\": \"dates\"}\n"
    "{\"id\": \"end\", \"ending\": \" In 1802\", \"kind\": \"dates\"}\n";

class AskCommandTest : public ::testing::Test {
 protected:
  CliResult Ask(const std::vector<std::string>& more, const std::string& context = kContext,
                const std::string& questions = kThreeQuestions) {
    std::vector<std::string> arguments = {"ask",
                                          "--worker",
                                          worker_.address(),
                                          "--context",
                                          folder_.Write("context.txt", context),
                                          "--questions",
                                          folder_.Write("questions.jsonl", questions)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCli(arguments);
  }
  std::vector<std::string> ToFile() { return {"--output", folder_.File("answers.jsonl")}; }
  size_t AnswersInFile() {
    const std::string text = folder_.Read("answers.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
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

TEST_F(AskCommandTest, TheCacheModeIsThatOfTheContext) {
  EXPECT_EQ(Ask({"--cache", "write"}).code, kExitOk);
  EXPECT_EQ(worker_.prefilled.size(), 1u);
  EXPECT_EQ(worker_.generated.back().cache(), v1::CACHE_MODE_OFF);
  EXPECT_EQ(Ask({"--cache", "read"}).code, kExitOk);
  EXPECT_EQ(worker_.prefilled.size(), 1u) << "not computed ahead";
  EXPECT_EQ(worker_.generated.back().cache(), v1::CACHE_MODE_READ);
}

TEST_F(AskCommandTest, AQuestionIsAChatsNextMessage) {
  const std::string chat =
      folder_.Write("chat.json", R"([{"role": "system", "content": "Be brief."}])");
  const CliResult result =
      RunCli({"ask", "--worker", worker_.address(), "--context-chat", chat, "--questions",
              folder_.Write("questions.jsonl", "{\"question\": \"Who?\"}\n")});
  ASSERT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(Asked(), ElementsAre("system:Be brief.\nuser:Who?\n"));
  EXPECT_EQ(TextOf(worker_.prefilled.at(0).prompt()), "system:Be brief.\n");
}

TEST_F(AskCommandTest, TokenIdsAreSentAsTheyAre) {
  const auto ask = [&](const std::string& questions) {
    return RunCli({"ask", "--worker", worker_.address(), "--context-token-ids",
                   folder_.Write("ids.txt", "65,66"), "--questions",
                   folder_.Write("questions.jsonl", questions), "--json"});
  };
  const CliResult result = ask("{\"token_ids\": [67]}\n{\"token_ids\": [68, 69]}\n");
  ASSERT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(Asked(), UnorderedElementsAre("ABC", "ABDE"));
  EXPECT_TRUE(worker_.tokenized.empty());
  EXPECT_THAT(ask("{\"ending\": \"C\"}").objects.at(0)["error"].get<std::string>(),
              HasSubstr("the context has token_ids, so this is to have them too"));
}

TEST_F(AskCommandTest, AFullWorkerIsAskedAgainUntilItHasRoom) {
  worker_.full_for = 9;
  const CliResult result = Ask({"--json"});
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(result.last()["answered"], 3);
  EXPECT_EQ(worker_.prefilled.size(), 1u);
  EXPECT_LE(worker_.full_for, 0);
}

TEST_F(AskCommandTest, QuestionsThatFindLessThanWasKeptAreSaidOnce) {
  worker_.finds_tokens = 26;
  EXPECT_THAT(Ask({}).err, Not(HasSubstr("said once")));
  worker_.finds_tokens = 16;
  const CliResult less = Ask({});
  EXPECT_EQ(less.code, kExitOk);
  EXPECT_THAT(less.err, HasSubstr("found 16 of the 26 tokens that were kept for all questions"));
  EXPECT_EQ(less.err.find("said once"), less.err.rfind("said once"));
}

TEST_F(AskCommandTest, ShowsAnswersAndATable) {
  worker_.finds_tokens = 26;
  const CliResult result = Ask({"--parallel", "1"});
  EXPECT_THAT(result.out, HasSubstr("-- end --\nHello there\n"));
  EXPECT_THAT(result.out, HasSubstr("context: 26 tokens shared, 0 cached, 26 computed"));
  EXPECT_THAT(result.out,
              HasSubstr("dates          2         2       0             52               14     "
                        "78.8%      25.0 ms      25.0 ms\n"));
  EXPECT_THAT(result.out,
              HasSubstr("all            3         3       0             78               21     "
                        "78.8%      25.0 ms      25.0 ms\n"));
  EXPECT_THAT(result.out, HasSubstr("3 ended by length"));
  EXPECT_THAT(result.err, HasSubstr("[3/3] end: 26 of 34 prompt tokens cached"));
}

TEST_F(AskCommandTest, AsJsonAnswersComeFirstAndTheReportLast) {
  worker_.finds_tokens = 26;
  const CliResult result = Ask({"--json", "--parallel", "1"});
  ASSERT_EQ(result.objects.size(), 4u) << result.out;
  const Json& first = result.objects[0];
  EXPECT_EQ(first["id"], "who");
  EXPECT_EQ(first["kind"], "names");
  EXPECT_EQ(first["answer"], "Hello there");
  EXPECT_EQ(first["cached_tokens"], 26);
  EXPECT_EQ(first["computed_tokens"], 7);
  EXPECT_EQ(first["ttft_ms"], 25.0);
  EXPECT_EQ(first["token_ids"], (std::vector<uint32_t>{'H', ' '}));
  const Json report = result.last();
  EXPECT_EQ(report["questions"], 3);
  EXPECT_EQ(report["answered"], 3);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["cached_tokens"], 78);
  EXPECT_EQ(report["ttft_median_ms"], 25.0);
  EXPECT_EQ(report["finish_reasons"]["length"], 3);
  EXPECT_EQ(report["kinds"]["names"]["answered"], 1);
  EXPECT_EQ(report["context"]["computed_tokens"], 26);
}

TEST_F(AskCommandTest, GoesOnWhereItStopped) {
  worker_.most_answers = 2;
  std::vector<std::string> in_turn = ToFile();
  in_turn.insert(in_turn.end(), {"--parallel", "1"});
  const CliResult broken = Ask(in_turn);
  EXPECT_EQ(broken.code, kExitFailed) << "it was reached";
  EXPECT_THAT(broken.err, HasSubstr("shutting down"));
  EXPECT_THAT(broken.out, AllOf(HasSubstr("1 were not answered"), Not(HasSubstr("-- end --"))));
  EXPECT_EQ(AnswersInFile(), 2u);
  worker_.most_answers = 100;
  worker_.generated.clear();
  const CliResult rest = Ask(ToFile());
  EXPECT_EQ(rest.code, kExitOk) << rest.err;
  EXPECT_THAT(Asked(), ElementsAre(std::string(kContext) + " In 1802"));
  EXPECT_THAT(rest.out, HasSubstr("2 were answered before"));
  EXPECT_EQ(AnswersInFile(), 3u);
  const CliResult nothing = Ask(ToFile());
  EXPECT_EQ(nothing.code, kExitOk) << nothing.err;
  EXPECT_EQ(worker_.generated.size(), 1u);
  EXPECT_EQ(nothing.out, "3 were answered before\n");
}

TEST_F(AskCommandTest, QuestionsThatFailedAreAskedAgain) {
  worker_.unanswerable = {"When?\nAnswer:"};
  const CliResult failed = Ask(ToFile());
  EXPECT_EQ(failed.code, kExitFailed);
  EXPECT_THAT(failed.err, HasSubstr("when: failed: too long"));
  EXPECT_EQ(AnswersInFile(), 2u);
  worker_.unanswerable.clear();
  worker_.generated.clear();
  EXPECT_EQ(Ask(ToFile()).code, kExitOk);
  EXPECT_THAT(Asked(), ElementsAre(HasSubstr("When?")));
  worker_.unanswerable = {"Who?\nAnswer:"};
  EXPECT_EQ(Ask({"--json", "--parallel", "1"}).objects.at(0)["error"], "too long");
}

TEST_F(AskCommandTest, AnotherContextQuestionOrFlagIsRefused) {
  ASSERT_EQ(Ask(ToFile()).code, kExitOk);
  const std::string before = folder_.Read("answers.jsonl");
  const CliResult context = Ask(ToFile(), "Another light.");
  EXPECT_EQ(context.code, kExitFailed);
  EXPECT_THAT(context.err, HasSubstr("another context"));
  const CliResult question =
      Ask(ToFile(), kContext, "{\"id\": \"who\", \"question\": \"Who else?\"}\n");
  EXPECT_EQ(question.code, kExitFailed);
  EXPECT_THAT(question.err, HasSubstr("another question \"who\""));
  std::vector<std::string> longer = ToFile();
  longer.insert(longer.end(), {"--max-new-tokens", "9"});
  EXPECT_EQ(Ask(longer).code, kExitFailed);
  EXPECT_EQ(worker_.generated.size(), 3u);
  EXPECT_EQ(folder_.Read("answers.jsonl"), before);
}

TEST_F(AskCommandTest, AnotherModelsAnswersAreNotAddedToAFile) {
  worker_.weights_sha256 = "aa";
  worker_.most_answers = 2;
  Ask(ToFile());
  const std::string before = folder_.Read("answers.jsonl");
  EXPECT_THAT(before, HasSubstr("\"model\":\"aa\""));
  worker_.most_answers = 100;
  worker_.weights_sha256 = "bb";
  const CliResult other = Ask(ToFile());
  EXPECT_EQ(other.code, kExitFailed);
  EXPECT_THAT(other.err, HasSubstr("line 1 is an answer of another model (aa, not bb)"));
  EXPECT_EQ(worker_.generated.size(), 2u) << "nothing is asked";
  EXPECT_EQ(folder_.Read("answers.jsonl"), before);
  worker_.weights_sha256 = "aa";
  EXPECT_EQ(Ask(ToFile()).code, kExitOk);
  EXPECT_EQ(AnswersInFile(), 3u);
}

TEST_F(AskCommandTest, SaysWhatIsWrongBeforeItAsks) {
  EXPECT_THAT(Ask({}, kContext, "{\"question\": 1}").err, HasSubstr("questions.jsonl: line 1"));
  EXPECT_EQ(Ask({"--template", "no place"}).code, kExitUsage);
  EXPECT_EQ(Ask({"--parallel", "65"}).code, kExitUsage);
  EXPECT_TRUE(worker_.generated.empty());
}

}  // namespace
}  // namespace hearth
