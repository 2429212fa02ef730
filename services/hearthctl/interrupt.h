// Interrupt: handles Ctrl-C. During an answer Ctrl-C stops the answer; otherwise it ends the
// program silently with exit code 130.
//
// Thread safety: SetAction may be called from any thread.
// Ownership: one object per process, created before other threads start, because they inherit its
// signal mask.
#ifndef HEARTH_SERVICES_HEARTHCTL_INTERRUPT_H_
#define HEARTH_SERVICES_HEARTHCTL_INTERRUPT_H_

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <utility>

#include "services/cli/console.h"
#include "services/cli/signal_thread.h"

namespace hearth {

class Interrupt {
 public:
  // Sets the function that the next Ctrl-C calls; empty: Ctrl-C ends the program. If an earlier
  // function is running, waits for its end before returning.
  void SetAction(std::function<void()> action) {
    std::lock_guard<std::mutex> lock(mutex_);
    action_ = std::move(action);
  }

 private:
  void Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (action_) return action_();
    // The main thread is blocked in an uninterruptible read of standard input, and no RPC is
    // running, so exit at once.
    std::fputc('\n', stdout);
    std::fflush(stdout);
    std::_Exit(kExitInterrupted);
  }

  std::mutex mutex_;
  std::function<void()> action_;
  const BlockedSignal blocked_{SIGINT};
  // Declared last: the thread uses the members above.
  const SignalThread thread_{SIGINT, [this] { Take(); }};
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_INTERRUPT_H_
