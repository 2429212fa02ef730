// RepeatingThread: a thread that calls a function repeatedly, and pauses between calls for the time
// that the function returned. The destructor interrupts a pause, and waits for a running call.
#ifndef HEARTH_CACHE_STORE_BASE_REPEATING_THREAD_H_
#define HEARTH_CACHE_STORE_BASE_REPEATING_THREAD_H_

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace hearth {

class RepeatingThread {
 public:
  explicit RepeatingThread(std::function<absl::Duration()> step)
      : step_(std::move(step)), thread_([this] { Run(); }) {}
  ~RepeatingThread() {
    stop_.Notify();
    thread_.join();
  }

 private:
  void Run() {
    // Longest single wait: the system time may be changed during a wait.
    constexpr absl::Duration kMaxAtOnce = absl::Minutes(10);
    while (!stop_.WaitForNotificationWithTimeout(std::min(step_(), kMaxAtOnce))) {
    }
  }

  const std::function<absl::Duration()> step_;
  absl::Notification stop_;
  std::thread thread_;  // the last member, because the thread uses the other members
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REPEATING_THREAD_H_
