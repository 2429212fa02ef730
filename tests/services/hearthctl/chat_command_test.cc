#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  // The answer's own tokens, which its text alone does not say.
  EXPECT_THAT(second.messages(2).token_ids(), ElementsAre('H', ' '));
  EXPECT_EQ(second.messages(3).parts(0).text(), "two");
  EXPECT_THAT(second.messages(3).token_ids(), IsEmpty());
  EXPECT_THAT(result.out, HasSubstr("first token after"));
  EXPECT_THAT(result.out, HasSubstr("computed all"));
}

TEST(ChatCommandTest, ResetForgetsTheConversation) {
  FakeWorker worker;
  RunCli({"chat", "--worker", worker.address()}, "one\n/reset\ntwo\n");
  ASSERT_EQ(worker.generated.size(), 2u);
  EXPECT_EQ(worker.generated[1].prompt().chat().messages_size(), 1);
}

TEST(ChatCommandTest, AWorkerThatDiesInAnAnswerIsReplacedByTheNext) {
  FakeWorker first, second;
  first.failure_between_words = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  const CliResult result =
      RunCli({"chat", "--worker", first.address(), "--worker", second.address()}, "one\ntwo\n");
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr(first.address() + ": going down"),
                                HasSubstr("asking " + second.address())));
  ASSERT_EQ(second.generated.size(), 2u);
  const v1::Chat& chat = second.generated[1].prompt().chat();
  ASSERT_EQ(chat.messages_size(), 3) << "the half answer is not in it";
  EXPECT_EQ(chat.messages(1).parts(0).text(), "Hello there");
}

TEST(ChatCommandTest, OneThatIsNotThereAtTheStartIsPassedOver) {
  FakeWorker there;
  const CliResult result = RunCli({"chat", "--worker", "127.0.0.1:9," + there.address()}, "one\n");
  EXPECT_EQ(result.code, kExitOk) << result.err;
  EXPECT_EQ(there.generated.size(), 1u);
  const CliResult none = RunCli({"chat", "--worker", "127.0.0.1:9", "--worker", "127.0.0.1:13"});
  EXPECT_EQ(none.code, kExitUnreachable);
  EXPECT_THAT(none.err, AllOf(HasSubstr("127.0.0.1:9"), HasSubstr("127.0.0.1:13")));
}

TEST(ChatCommandTest, APipeEndsWhenAllWorkersHaveDied) {
  FakeWorker first, second;
  first.failure = second.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  const CliResult result =
      RunCli({"chat", "--worker", first.address(), "--worker", second.address()}, "one\ntwo\n");
  EXPECT_EQ(result.code, kExitFailed) << "they were reached";
  EXPECT_THAT(result.err, HasSubstr("hearthctl: UNAVAILABLE: worker at " + second.address()));
}

TEST(ChatCommandTest, TheWorkerThatFailedIsNamedWhereNoOtherCanBeAsked) {
  FakeWorker first, second;
  const TestFolder folder;
  const std::string token = folder.Write("token", "a-token-of-thirty-two-characters");
  ASSERT_EQ(::chmod(token.c_str(), 0600), 0);
  first.failure_between_words = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  first.between_words = [&] { ::unlink(token.c_str()); };  // so that no connection can be made
  const CliResult result = RunCli(
      {"chat", "--token-file", token, "--worker", first.address(), "--worker", second.address()},
      "one\n");
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("UNAVAILABLE: worker at " + first.address() + ": going down"));
}

TEST(ChatCommandTest, AConversationThatWasSavedIsGoneOnWith) {
  FakeWorker worker;
  TestFolder folder;
  const std::string path = folder.File("talk.json");
  const std::string other = folder.Write("other.json", "precious");
  const CliResult saved =
      RunCli({"chat", "--worker", worker.address(), "--system", "Be \"brief\"."},
             "one\n/save " + path + "\ntwo\n/save " + path + "\n/save " + other + "\n/save\n");
  EXPECT_THAT(saved.out,
              AllOf(HasSubstr("saved 3 messages to " + path),
                    HasSubstr("saved 5 messages to " + path), HasSubstr("/save needs a file")));
  EXPECT_THAT(saved.err, HasSubstr(other + " exists: name another file"));
  EXPECT_EQ(folder.Read("other.json"), "precious");
  const CliResult loaded = RunCli({"chat", "--worker", worker.address()},
                                  "/load " + path + "\nthree\n/load " + other + "\n");
  EXPECT_THAT(loaded.out, HasSubstr("loaded 5 messages from " + path));
  EXPECT_THAT(loaded.err, HasSubstr(other));
  const v1::Chat& chat = worker.generated.back().prompt().chat();
  ASSERT_EQ(chat.messages_size(), 6);
  EXPECT_EQ(chat.messages(0).parts(0).text(), "Be \"brief\".");
  EXPECT_EQ(chat.messages(2).token_ids_size(), 2) << "saved and loaded with the text";
  EXPECT_EQ(chat.messages(5).parts(0).text(), "three");
}

TEST(ChatCommandTest, CommandsAreNoQuestionsAndAPathIsOne) {
  FakeWorker worker;
  const CliResult result = RunCli({"chat", "--worker", worker.address()},
                                  "/help\n/frobnicate now\n/etc/passwd?\none\n/clear\ntwo\n/exit\n"
                                  "three\n");
  EXPECT_THAT(result.out, AllOf(HasSubstr("/save FILE"), HasSubstr("there is no /frobnicate"),
                                HasSubstr("model> Hello there")));
  ASSERT_EQ(worker.generated.size(), 3u);
  EXPECT_EQ(worker.generated[0].prompt().chat().messages(0).parts(0).text(), "/etc/passwd?");
  EXPECT_EQ(worker.generated[2].prompt().chat().messages_size(), 1) << "after /clear";
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
