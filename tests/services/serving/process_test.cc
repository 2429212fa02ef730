#include "services/serving/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "tests/support/run_in_child.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

TEST(Process, OpenFileLimitIsRaised) {
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

TEST(Process, StopSignalEndsStart) {
  const int end = RunInChild([] {
    HandleStopSignals();
    kill(getpid(), SIGTERM);
    for (;;) pause();
  });
  EXPECT_TRUE(WIFEXITED(end));
  EXPECT_EQ(WEXITSTATUS(end), 0);
}

// A start that only computes makes no system call that a signal could interrupt.
TEST(Process, StopSignalEndsBusyStart) {
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

TEST(Process, StopSignalBeforeWaitIsRemembered) {
  const int end = RunInChild([] {
    HandleStopSignals();
    KeepStopSignal();
    kill(getpid(), SIGTERM);
    std::_Exit(WaitForStopSignal() == "SIGTERM" ? 3 : 4);
  });
  EXPECT_TRUE(WIFEXITED(end));
  EXPECT_EQ(WEXITSTATUS(end), 3);
}

// A limit of address space (RLIMIT_AS) that no test reaches.
constexpr rlim_t kHighLimit = rlim_t{1} << 60;

// Runs a guarded start in a child process and returns its wait status. `said`: gets its stderr.
int EndOfStart(const std::function<void()>& start, std::string* said,
               rlim_t limit = RLIM_INFINITY) {
  const TestFolder folder;
  const std::string path = folder.File("stderr");
  const int end = RunInChild([&] {
    dup2(open(path.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    rlimit memory{};
    getrlimit(RLIMIT_AS, &memory);
    memory.rlim_cur = std::min(limit, memory.rlim_max);
    setrlimit(RLIMIT_AS, &memory);
    GuardStart("hearth-test", {"--host-bytes=4GiB"});
    start();
  });
  *said = folder.Read("stderr");
  return end;
}

// Checks that the process exited with one line that contains `cause`, and no other output.
void ExpectLine(int end, const std::string& said, const std::string& cause) {
  EXPECT_TRUE(WIFEXITED(end)) << end;
  EXPECT_EQ(WEXITSTATUS(end), 1);
  EXPECT_EQ(said.find("hearth-test: the start failed: " + cause), 0u) << said;
  EXPECT_NE(said.find("--host-bytes=4GiB"), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
}

TEST(Process, RefusedMemoryOrThreadPrintsLine) {
  const std::function<void()> starts[] = {
      [] { std::thread([] { throw std::bad_alloc(); }).join(); },
      [] { std::thread([] { throw std::system_error(EAGAIN, std::generic_category()); }).join(); }};
  for (const auto& start : starts) {
    std::string said;
    const int end = EndOfStart(start, &said);
    ExpectLine(end, said, "the system refused memory or a thread (");
  }
}

TEST(Process, CrashUnderUlimitPrintsOneLine) {
  const std::pair<std::function<void()>, std::string> starts[] = {
      {[] { const std::thread thread(&pause); }, "std::terminate; unless"},
      {[] { std::thread([] { throw std::runtime_error("broken"); }).join(); }, "broken; unless"},
      {[] { std::abort(); }, "SIGABRT; unless"},
      {[] { raise(SIGBUS); }, "SIGBUS; unless"}};
  for (const auto& [start, cause] : starts) {
    std::string said;
    const int end = EndOfStart(start, &said, kHighLimit);
    ExpectLine(end, said, cause);
  }
}

// The second crash must wait until the first crash has written its line.
TEST(Process, TwoCrashesPrintOneLine) {
  for (int i = 0; i < 8; ++i) {
    std::string said;
    const auto start = [] {
      std::atomic<int> ready{0};
      const auto crash = [&ready] {
        ++ready;
        while (ready < 2) continue;
        std::abort();
      };
      std::thread other(crash);
      crash();
    };
    const int end = EndOfStart(start, &said, kHighLimit);
    ExpectLine(end, said, "SIGABRT; unless");
  }
}

// Without a limit, refused memory cannot be the cause, so the crash must end the process as usual.
TEST(Process, CrashWithoutUlimitIsNotHidden) {
  rlimit memory{};
  getrlimit(RLIMIT_AS, &memory);
  if (memory.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "the test itself has a limit";
  const std::pair<std::function<void()>, std::string> starts[] = {
      {[] { std::abort(); }, ""}, {[] { throw std::runtime_error("broken"); }, "broken"}};
  for (const auto& [start, word] : starts) {
    std::string said;
    const auto run = [&start = start]() noexcept { start(); };
    const int end = EndOfStart(run, &said);
    EXPECT_TRUE(WIFSIGNALED(end)) << end;
    EXPECT_EQ(said.find("hearth-test"), std::string::npos) << said;
    EXPECT_NE(said.find(word), std::string::npos) << said;
  }
}

TEST(Process, CrashAfterStartIsNotHidden) {
  const std::pair<std::function<void()>, std::string> crashes[] = {
      {[] { std::abort(); }, ""}, {[] { throw std::runtime_error("broken"); }, "what():  broken"}};
  for (const auto& [crash, words] : crashes) {
    std::string said;
    const auto run = [&crash = crash]() noexcept {
      EndStartGuard();
      crash();
    };
    const int end = EndOfStart(run, &said, kHighLimit);
    EXPECT_TRUE(WIFSIGNALED(end)) << end;
    EXPECT_EQ(said.find("hearth-test"), std::string::npos) << said;
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace hearth
