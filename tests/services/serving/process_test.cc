#include "services/serving/process.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include "tests/support/run_in_child.h"

namespace hearth {
namespace {

TEST(Process, OpensAsManyFilesAsItMay) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  RaiseOpenFileLimit();
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(Process, AStopSignalEndsAStartAtOnce) {
  const int end = RunInChild([] {
    HandleStopSignals();
    kill(getpid(), SIGTERM);
    for (;;) pause();
  });
  EXPECT_TRUE(WIFEXITED(end));
  EXPECT_EQ(WEXITSTATUS(end), 0);
}

// A start that parses a model's files makes no call that a signal could interrupt.
TEST(Process, StopSignalEndsABusyStart) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const int end = RunInChild([signal] {
      HandleStopSignals();
      kill(getpid(), signal);
      for (volatile unsigned work = 0;; work = work + 1) {
      }
    });
    EXPECT_TRUE(WIFEXITED(end));
    EXPECT_EQ(WEXITSTATUS(end), 0);
  }
}

TEST(Process, AStopSignalThatCameBeforeItIsWaitedForIsKept) {
  const int end = RunInChild([] {
    HandleStopSignals();
    KeepStopSignal();
    kill(getpid(), SIGTERM);
    std::_Exit(WaitForStopSignal() == "SIGTERM" ? 3 : 4);
  });
  EXPECT_TRUE(WIFEXITED(end));
  EXPECT_EQ(WEXITSTATUS(end), 3);
}

}  // namespace
}  // namespace hearth
