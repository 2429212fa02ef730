// ProgressPace: says when a caller is to hear again how far its prompt is.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_PROGRESS_PACE_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_PROGRESS_PACE_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace hearth {

inline constexpr absl::Duration kProgressPause = absl::Milliseconds(250);

class ProgressPace {
 public:
  // `pause`: the least time between two messages; InfiniteDuration: there are none.
  explicit ProgressPace(absl::Duration pause) : pause_(pause) {}

  // Whether now; then not for a while.
  bool IsDue() {
    const absl::Time now = absl::Now();
    if (now < next_) return false;
    next_ = now + pause_;
    return true;
  }
  bool is_wanted() const { return pause_ != absl::InfiniteDuration(); }

 private:
  const absl::Duration pause_;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_PROGRESS_PACE_H_
