#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST(ChatCommandTest, EachTurnSendsTheWholeConversation) {
  FakeWorker worker;
  const CliResult result =
      RunCli({"chat", "--worker", worker.address(), "--system", "Be brief."}, "one\n\ntwo\n");
  EXPECT_EQ(result.code, kExitOk) << result.err;
  ASSERT_EQ(worker.generated.size(), 2u);
  const v1::Chat& second = worker.generated[1].prompt().chat();
  ASSERT_EQ(second.messages_size(), 4);
  EXPECT_EQ(second.messages(0).role(), "system");
  EXPECT_EQ(second.messages(1).parts(0).text(), "one");
  EXPECT_EQ(second.messages(2).role(), "model");
  EXPECT_EQ(second.messages(2).parts(0).text(), "Hello there");
  EXPECT_EQ(second.messages(3).parts(0).text(), "two");
  EXPECT_THAT(result.out, HasSubstr("first token after"));
  EXPECT_THAT(result.out, HasSubstr("computed all"));
}

TEST(ChatCommandTest, ResetForgetsTheConversation) {
  FakeWorker worker;
  RunCli({"chat", "--worker", worker.address()}, "one\n/reset\ntwo\n");
  ASSERT_EQ(worker.generated.size(), 2u);
  EXPECT_EQ(worker.generated[1].prompt().chat().messages_size(), 1);
}

TEST(ChatCommandTest, EndOfInputEndsItQuietly) {
  FakeWorker worker;
  const CliResult result = RunCli({"chat", "--worker", worker.address()}, "");
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.err, "");
}

TEST(ChatCommandTest, ALineThatIsNoUtf8IsNotSentAndTheChatGoesOn) {
  FakeWorker worker;
  const CliResult result = RunCli({"chat", "--worker", worker.address()}, "on\xFF\ntwo\n");
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.err, HasSubstr("the question is not valid UTF-8 at byte 2"));
  ASSERT_EQ(worker.generated.size(), 1u);
  EXPECT_EQ(worker.generated[0].prompt().chat().messages(0).parts(0).text(), "two");
  const CliResult system = RunCli({"chat", "--worker", worker.address(), "--system", "\xFF"});
  EXPECT_EQ(system.code, kExitUsage);
  EXPECT_THAT(system.err, HasSubstr("--system is not valid UTF-8 at byte 0"));
}

TEST(ChatCommandTest, ARefusedQuestionIsTakenBackAndTheChatGoesOn) {
  FakeWorker worker;
  worker.failure = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
  const CliResult result = RunCli({"chat", "--worker", worker.address(), "--json"}, "one\ntwo\n");
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_THAT(result.err, HasSubstr("the queue is full"));
  EXPECT_EQ(worker.generated.size(), 0u);
}

}  // namespace
}  // namespace hearth
