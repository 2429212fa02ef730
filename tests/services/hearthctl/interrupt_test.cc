// In a program of its own: every other thread of the process must leave SIGINT to the watcher.
#include "services/hearthctl/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

namespace hearth {
namespace {

TEST(InterruptTest, DuringAnAnswerItRunsTheAction) {
  std::promise<void> stopped;
  Interrupt interrupt;
  interrupt.SetAction([&] { stopped.set_value(); });
  ::kill(::getpid(), SIGINT);
  stopped.get_future().wait();
  interrupt.SetAction(nullptr);
}

TEST(InterruptTest, OtherwiseItEndsTheProgramWithZero) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Interrupt interrupt;
        ::kill(::getpid(), SIGINT);
        std::promise<void>().get_future().wait();
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(InterruptTest, LeavesTheSignalMaskAsItWas) {
  { Interrupt interrupt; }
  sigset_t mask;
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &mask), 0);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

}  // namespace
}  // namespace hearth
