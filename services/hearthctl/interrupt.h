// Interrupt: turns Ctrl-C into an event. During an answer it stops that answer; otherwise it ends
// the program, quietly and with exit code 130.
//
// Thread safety: SetAction may be called from any thread.
// Ownership: one for a process, made before other threads start, since they inherit its signal
// mask.
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
  // The action for the next Ctrl-C; empty: end the program. Returns when no earlier action runs.
  void SetAction(std::function<void()> action) {
    std::lock_guard<std::mutex> lock(mutex_);
    action_ = std::move(action);
  }

 private:
  void Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (action_) return action_();
    // Main waits in a read of standard input that nothing ends; nothing is in flight.
    std::fputc('\n', stdout);
    std::fflush(stdout);
    std::_Exit(kExitInterrupted);
  }

  std::mutex mutex_;
  std::function<void()> action_;
  const BlockedSignal blocked_{SIGINT};
  const SignalThread thread_{SIGINT, [this] { Take(); }};  // last: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_INTERRUPT_H_
