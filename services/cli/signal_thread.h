// SignalThread: calls a function on a dedicated thread each time the process receives a signal.
//
// REQUIRES: the signal is blocked in all threads. So call BlockSignal, or create a BlockedSignal,
// before any other thread starts. The destructor waits for a running call of the function.
#ifndef HEARTH_SERVICES_CLI_SIGNAL_THREAD_H_
#define HEARTH_SERVICES_CLI_SIGNAL_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cassert>
#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace hearth {

inline void BlockSignal(int signal) {
  std::signal(signal, SIG_DFL);  // the kernel drops an ignored signal instead of keeping it pending
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// Returns whether the calling thread blocks the signal.
inline bool IsSignalBlocked(int signal) {
  sigset_t blocked;
  return pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 && sigismember(&blocked, signal) == 1;
}

// Blocks a signal during its lifetime, in the creating thread and in threads which that thread
// starts.
class BlockedSignal {
 public:
  explicit BlockedSignal(int signal) {
    pthread_sigmask(SIG_BLOCK, nullptr, &before_);
    BlockSignal(signal);
  }
  ~BlockedSignal() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignal(const BlockedSignal&) = delete;
  BlockedSignal& operator=(const BlockedSignal&) = delete;

 private:
  sigset_t before_;
};

class SignalThread {
 public:
  SignalThread(int signal, std::function<void()> call)
      : signal_(signal), call_(std::move(call)), thread_([this] { Run(); }) {}
  ~SignalThread() {
    stopping_.store(true);
    pthread_kill(thread_.native_handle(), signal_);
    thread_.join();
  }

 private:
  void Run() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, signal_);
    assert(IsSignalBlocked(signal_));  // inherited from the creating thread
    for (int came = 0; sigwait(&signals, &came) == 0 && !stopping_.load();) call_();
  }

  const int signal_;
  const std::function<void()> call_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // declared last: the thread uses the members above
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_SIGNAL_THREAD_H_
