#include "services/serving/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "tests/support/run_in_child.h"
#include "tests/support/test_folder.h"

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

// The end of a guarded start, and what it said on stderr.
int EndOfStart(const std::function<void()>& start, std::string* said) {
  const TestFolder folder;
  const std::string path = folder.File("stderr");
  const int end = RunInChild([&] {
    dup2(open(path.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    GuardStart("hearth-test", {"--host-bytes=4GiB"});
    start();
  });
  *said = folder.Read("stderr");
  return end;
}

TEST(Process, RefusedStartEndsWithALine) {
  const std::function<void()> starts[] = {
      [] { std::thread([] { throw std::bad_alloc(); }).join(); },
      [] { std::thread([] { throw std::system_error(EAGAIN, std::generic_category()); }).join(); },
      [] { const std::thread thread(&pause); },  // destroyed while it runs, as by a failed start
      [] { std::abort(); }};
  for (const auto& start : starts) {
    std::string said;
    const int end = EndOfStart(start, &said);
    EXPECT_TRUE(WIFEXITED(end)) << end;
    EXPECT_EQ(WEXITSTATUS(end), 1);
    EXPECT_EQ(said.find("hearth-test: "), 0u) << said;
    EXPECT_NE(said.find("--host-bytes=4GiB"), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
  }
}

TEST(Process, AbortAfterTheStartIsAnAbort) {
  std::string said;
  const int end = EndOfStart(
      [] {
        EndStartGuard();
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        std::abort();
      },
      &said);
  EXPECT_TRUE(WIFSIGNALED(end));
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace hearth
