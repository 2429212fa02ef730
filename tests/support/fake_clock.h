// A clock that advances only when a test advances it. Thread safe.
#ifndef HEARTH_TESTS_SUPPORT_FAKE_CLOCK_H_
#define HEARTH_TESTS_SUPPORT_FAKE_CLOCK_H_

#include "absl/synchronization/mutex.h"
#include "cache_store/base/clock.h"

namespace hearth {

class FakeClock : public Clock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mu_);
    return now_;
  }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mu_);
    now_ += by;
  }

 private:
  absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::FromUnixSeconds(1700000000);
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_FAKE_CLOCK_H_
