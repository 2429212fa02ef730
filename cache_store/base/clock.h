// The store's only source of time, so that tests can control time. Implementations are thread safe
// and outlive the store.
#ifndef HEARTH_CACHE_STORE_BASE_CLOCK_H_
#define HEARTH_CACHE_STORE_BASE_CLOCK_H_

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace hearth {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
};

class SystemClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
};

// A clock for durations and pauses. Its times do not jump when the system time is set, so they are
// comparable only with each other.
class SteadyClock : public Clock {
 public:
  absl::Time Now() override {
    return absl::UnixEpoch() +
           absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_CLOCK_H_
