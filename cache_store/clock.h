// The store's only source of time, so that tests own it.
// Implementations are thread safe and outlive the store.
#ifndef HEARTH_CACHE_STORE_CLOCK_H_
#define HEARTH_CACHE_STORE_CLOCK_H_

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

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CLOCK_H_
