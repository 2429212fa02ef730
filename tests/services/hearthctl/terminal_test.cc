// hearthctl on a terminal.
#include "tests/services/hearthctl/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

#include "absl/synchronization/notification.h"
#include "tests/services/hearthctl/fake_worker.h"

namespace hearth {
namespace {

using ::testing::EndsWith;

TEST(TerminalTest, CtrlCInAnAnswerLeavesALineEndAndTheSignalsExit) {
  FakeWorker worker;
  absl::Notification go_on;
  worker.between_words = [&go_on] { go_on.WaitForNotification(); };
  Terminal terminal({"generate", "--worker", worker.address(), "--prompt", "a"});
  ASSERT_TRUE(terminal.WaitFor("Hello")) << terminal.screen();
  terminal.Type("\x03");
  const int status = terminal.WaitEnd();
  go_on.Notify();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_THAT(terminal.screen(), EndsWith("\r\n"));
}

}  // namespace
}  // namespace hearth
