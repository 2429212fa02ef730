// CircuitBreaker: stops asking a peer that does not answer, so that requests do not each wait for
// it.
//
// Open after an unanswered call, for one second, then twice as long after each further one, up to
// eight. One answer closes it. A peer that refuses connections needs no breaker, since that is
// quick.
// Thread safety: all methods from any thread. Time is the caller's, so that tests need no clock.
#ifndef HEARTH_SERVICES_INFERENCE_CIRCUIT_BREAKER_H_
#define HEARTH_SERVICES_INFERENCE_CIRCUIT_BREAKER_H_

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hearth {

class CircuitBreaker {
 public:
  static constexpr int kFirstCooldownMs = 1000;
  static constexpr int kMaxCooldownMs = 8000;

  bool Allows(absl::Time now) const {
    absl::MutexLock lock(&mutex_);
    return now >= open_until_;
  }
  void OnAnswer() {
    absl::MutexLock lock(&mutex_);
    cooldown_ms_ = kFirstCooldownMs;
    open_until_ = absl::InfinitePast();
  }
  void OnSilence(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    if (now < open_until_) return;  // a call from before it opened
    open_until_ = now + absl::Milliseconds(cooldown_ms_);
    cooldown_ms_ = std::min(2 * cooldown_ms_, kMaxCooldownMs);
  }

 private:
  mutable absl::Mutex mutex_;
  int cooldown_ms_ ABSL_GUARDED_BY(mutex_) = kFirstCooldownMs;
  absl::Time open_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CIRCUIT_BREAKER_H_
