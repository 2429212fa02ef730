// These tests run in separate processes (death tests): all threads of a process must block SIGINT
// so that only the Interrupt's thread gets it, but the threads of other tests do not block it.
#include "services/hearthctl/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

namespace hearth {
namespace {

TEST(InterruptTest, SignalDuringAnswerRunsAction) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        std::promise<void> stopped;
        Interrupt interrupt;
        interrupt.SetAction([&] { stopped.set_value(); });
        ::kill(::getpid(), SIGINT);
        stopped.get_future().wait();
        interrupt.SetAction(nullptr);
        std::_Exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(InterruptTest, SignalWithoutActionExits130) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Interrupt interrupt;
        ::kill(::getpid(), SIGINT);
        std::promise<void>().get_future().wait();
      },
      ::testing::ExitedWithCode(130), "");
}

TEST(InterruptTest, DestructorRestoresSignalMask) {
  { Interrupt interrupt; }
  sigset_t mask;
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &mask), 0);
  EXPECT_EQ(sigismember(&mask, SIGINT), 0);
}

}  // namespace
}  // namespace hearth
