// Interrupt: turns Ctrl-C into an event. During an answer it stops that answer; otherwise it ends
// the program, quietly and with exit code 130.
//
// Thread safety: SetAction may be called from any thread.
// Ownership: one for a process, made before other threads start, since they inherit its signal
// mask.
#ifndef HEARTH_SERVICES_HEARTHCTL_INTERRUPT_H_
#define HEARTH_SERVICES_HEARTHCTL_INTERRUPT_H_

#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

namespace hearth {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The action for the next Ctrl-C; empty: end the program. Returns when no earlier action runs.
  void SetAction(std::function<void()> action);

 private:
  void Watch();

  std::mutex mutex_;
  std::function<void()> action_;
  bool stopping_ = false;
  sigset_t previous_mask_;
  std::thread watcher_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_INTERRUPT_H_
