// RepeatingThread: a thread that calls a function again and again.
//
// The function returns how long to wait before the next call. The destructor ends that wait, and
// returns when a running call has.
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
    // No single wait for longer: clocks are set, too.
    constexpr absl::Duration kMaxAtOnce = absl::Minutes(10);
    while (!stop_.WaitForNotificationWithTimeout(std::min(step_(), kMaxAtOnce))) {
    }
  }

  const std::function<absl::Duration()> step_;
  absl::Notification stop_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_REPEATING_THREAD_H_
