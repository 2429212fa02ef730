#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "services/rpc/proto_conversion.h"
#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

  FakeWorker worker_;
  TestFolder folder_;
};

TEST_F(AskCommandTest, SendsTheContextOnceWithAllQuestions) {
  const CliResult result = Ask({"--parallel", "7", "--max-new-tokens", "5", "--stop", "."});
  ASSERT_EQ(result.code, kExitOk) << result.err;
  ASSERT_EQ(worker_.asked.size(), 1u);
  const v1::AskRequest& request = worker_.asked[0];
  EXPECT_EQ(request.context().text(), kContext);
  EXPECT_EQ(request.parallel(), 7u);
  EXPECT_EQ(request.each().max_new_tokens(), 5u);
  EXPECT_EQ(request.each().stop(0), ".");
  ASSERT_EQ(request.questions_size(), 3);
  EXPECT_EQ(request.questions(0).id(), "who");
  EXPECT_EQ(request.questions(0).text(), "\n\nQuestion: Who?\nAnswer:");
  EXPECT_EQ(request.questions(2).text(), " In 1802");
}

TEST_F(AskCommandTest, ShowsAnswersAndATable) {
  const CliResult result = Ask({});
  EXPECT_THAT(result.out, HasSubstr("-- end --\nTo In 1802\n"));
  EXPECT_THAT(result.out, HasSubstr("context: 26 tokens shared, 0 cached, 26 computed"));
  EXPECT_THAT(result.out,
              HasSubstr("dates          2         2       0             52               20     "
                        "72.2%      20.0 ms      30.0 ms\n"));
  EXPECT_THAT(result.out,
              HasSubstr("all            3         3       0             78               30     "
                        "72.2%      20.0 ms      30.0 ms\n"));
  EXPECT_THAT(result.out, HasSubstr("3 ended by length"));
  EXPECT_THAT(result.err, HasSubstr("[1/3] end: 26 of 36 prompt tokens cached"));
}

TEST_F(AskCommandTest, AsJsonAnswersComeFirstAndTheReportLast) {
  const CliResult result = Ask({"--json"});
  ASSERT_EQ(result.objects.size(), 4u) << result.out;
  const Json& first = result.objects[0];
  EXPECT_EQ(first["id"], "end");
  EXPECT_EQ(first["kind"], "dates");
  EXPECT_EQ(first["answer"], "To In 1802");
  EXPECT_EQ(first["cached_tokens"], 26);
  EXPECT_EQ(first["computed_tokens"], 10);
  EXPECT_EQ(first["ttft_ms"], 30.0);
  EXPECT_EQ(first["token_ids"], (std::vector<uint32_t>{2}));
  const Json report = result.last();
  EXPECT_EQ(report["questions"], 3);
  EXPECT_EQ(report["answered"], 3);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["cached_tokens"], 78);
  EXPECT_EQ(report["ttft_median_ms"], 20.0);
  EXPECT_EQ(report["ttft_p99_ms"], 30.0);
  EXPECT_EQ(report["finish_reasons"]["length"], 3);
  EXPECT_EQ(report["kinds"]["names"]["answered"], 1);
  EXPECT_EQ(report["context"]["computed_tokens"], 26);
}

TEST_F(AskCommandTest, GoesOnWhereItStopped) {
  worker_.most_answers = 2;
  const CliResult broken = Ask(ToFile());
  EXPECT_EQ(broken.code, kExitUnreachable);
  EXPECT_THAT(broken.err, HasSubstr("shutting down"));
  EXPECT_THAT(broken.out, AllOf(HasSubstr("1 were not answered"), Not(HasSubstr("-- end --"))));
  EXPECT_EQ(AnswersInFile(), 2u);
  worker_.most_answers = 100;
  const CliResult rest = Ask(ToFile());
  EXPECT_EQ(rest.code, kExitOk) << rest.err;
  ASSERT_EQ(worker_.asked.size(), 2u);
  ASSERT_EQ(worker_.asked[1].questions_size(), 1);
  EXPECT_EQ(worker_.asked[1].questions(0).id(), "who");
  EXPECT_THAT(rest.out, HasSubstr("2 were answered before"));
  EXPECT_EQ(AnswersInFile(), 3u);
  const CliResult nothing = Ask(ToFile());
  EXPECT_EQ(nothing.code, kExitOk) << nothing.err;
  EXPECT_EQ(worker_.asked.size(), 2u);
  EXPECT_EQ(nothing.out, "3 were answered before\n");
}

TEST_F(AskCommandTest, WhatFailedIsAskedAgain) {
  worker_.unanswerable = {"when"};
  const CliResult failed = Ask(ToFile());
  EXPECT_EQ(failed.code, kExitFailed);
  EXPECT_THAT(failed.err, HasSubstr("when: failed: too long"));
  EXPECT_EQ(AnswersInFile(), 2u);
  worker_.unanswerable.clear();
  EXPECT_EQ(Ask(ToFile()).code, kExitOk);
  ASSERT_EQ(worker_.asked.back().questions_size(), 1);
  EXPECT_EQ(worker_.asked.back().questions(0).id(), "when");
  worker_.unanswerable = {"who"};
  EXPECT_EQ(Ask({"--json"}).objects.at(2)["error"], "too long");
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
  EXPECT_EQ(worker_.asked.size(), 1u);
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
  EXPECT_EQ(worker_.asked.size(), 1u) << "nothing is asked";
  EXPECT_EQ(folder_.Read("answers.jsonl"), before);
  worker_.weights_sha256 = "aa";
  EXPECT_EQ(Ask(ToFile()).code, kExitOk);
  EXPECT_EQ(AnswersInFile(), 3u);
}

TEST_F(AskCommandTest, AModelThatChangesBetweenTwoCallsOfOneRunIsNoticed) {
  std::string questions;
  for (int i = 0; i < 1100; ++i) questions += "{\"ending\": \" so\"}\n";
  worker_.weights_sha256 = "aa";
  worker_.weights_after_ask = "bb";
  const CliResult result = Ask(ToFile(), kContext, questions);
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("another model by now (bb, not aa)"));
  EXPECT_EQ(worker_.asked.size(), 1u);
  EXPECT_EQ(AnswersInFile(), 1024u);
}

TEST_F(AskCommandTest, ManyQuestionsAreSeveralCallsThatEachFit) {
  std::string questions;
  for (int i = 0; i < 1500; ++i) questions += "{\"ending\": \" so\"}\n";
  ASSERT_EQ(Ask({"--json"}, kContext, questions).last()["answered"], 1500);
  ASSERT_EQ(worker_.asked.size(), 2u);
  EXPECT_EQ(worker_.asked[0].questions_size(), 1024);
  worker_.asked.clear();
  const std::string large = "{\"ending\": \"" + std::string(1 << 20, 'x') + "\"}\n";
  ASSERT_EQ(Ask({"--json"}, std::string(1 << 20, 'c'), large + large + large).last()["answered"],
            3);
  for (const v1::AskRequest& request : worker_.asked) {
    EXPECT_LE(request.ByteSizeLong(), kMaxMessageBytes);
  }
  EXPECT_GT(worker_.asked.size(), 1u);
}

TEST_F(AskCommandTest, SaysWhatIsWrongBeforeItAsks) {
  EXPECT_THAT(Ask({}, kContext, "{\"question\": 1}").err, HasSubstr("questions.jsonl: line 1"));
  EXPECT_EQ(Ask({"--template", "no place"}).code, kExitUsage);
  EXPECT_EQ(Ask({"--parallel", "65"}).code, kExitUsage);
  EXPECT_TRUE(worker_.asked.empty());
}

}  // namespace
}  // namespace hearth
