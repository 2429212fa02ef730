// RepeatingThread: a thread that calls a function repeatedly.
//
// The function returns the pause before the next call. The destructor ends a pause, and waits for a
// running call.
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
    // Longest single wait: the machine's clock may be set meanwhile.
    constexpr absl::Duration kMaxAtOnce = absl::Minutes(10);
    while (!stop_.WaitForNotificationWithTimeout(std::min(step_(), kMaxAtOnce))) {
    }
  }

  const std::function<absl::Duration()> step_;
  absl::Notification stop_;
  std::thread thread_;  // last member: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REPEATING_THREAD_H_
