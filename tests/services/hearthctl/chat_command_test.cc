#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/services/hearthctl/fake_worker.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST(ChatCommandTest, ErrorNamesWorkerIfFailoverFails) {
  FakeWorker first, second;
  const TestFolder folder;
  const std::string token = folder.Write("token", "a-token-of-thirty-two-characters");
  ASSERT_EQ(::chmod(token.c_str(), 0600), 0);
  first.failure_between_words = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  // without the token file, chat cannot connect to the second worker
  first.between_words = [&] { ::unlink(token.c_str()); };
  const CliResult result = RunCli(
      {"chat", "--token-file", token, "--worker", first.address(), "--worker", second.address()},
      "one\n");
  EXPECT_EQ(result.code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("UNAVAILABLE: worker at " + first.address() + ": going down"));
}

TEST(ChatCommandTest, BaseModel_IsNotedOnceBeforeFirstTurn) {
  FakeWorker worker;
  worker.model_dir = "models/gemma-3-270m.gguf";
  const CliResult result = RunCli({"chat", "--worker", worker.address()}, "one\ntwo\n");
  EXPECT_EQ(result.code, kExitOk);
  EXPECT_EQ(result.err,
            "[gemma-3-270m.gguf is a base model: it continues text and does not follow "
            "instructions]\n");
  worker.model_dir = "models/gemma-3-1b-it.gguf";
  EXPECT_EQ(RunCli({"chat", "--worker", worker.address()}, "one\n").err, "");
}

}  // namespace
}  // namespace hearth
