#include "services/hearthctl/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "services/cli/console.h"

namespace hearth {
namespace {

sigset_t Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = Interrupts();
  pthread_sigmask(SIG_BLOCK, &set, &previous_mask_);
  watcher_ = std::thread([this] { Watch(); });
}

Interrupt::~Interrupt() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  pthread_kill(watcher_.native_handle(), SIGINT);
  watcher_.join();
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void Interrupt::SetAction(std::function<void()> action) {
  std::lock_guard<std::mutex> lock(mutex_);
  action_ = std::move(action);
}

void Interrupt::Watch() {
  const sigset_t set = Interrupts();
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    if (action_) {
      action_();
      continue;
    }
    // Main waits in a read of standard input that nothing ends; nothing is in flight.
    std::fputc('\n', stdout);
    std::fflush(stdout);
    std::_Exit(kExitInterrupted);
  }
}

}  // namespace hearth
