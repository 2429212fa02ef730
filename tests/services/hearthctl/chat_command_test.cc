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

}  // namespace
}  // namespace hearth
