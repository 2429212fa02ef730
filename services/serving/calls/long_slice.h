// LongSlice: asks the scheduler for a long time slice, so that a computing thread does not delay
// threads that answer.
#ifndef HEARTH_SERVICES_SERVING_CALLS_LONG_SLICE_H_
#define HEARTH_SERVICES_SERVING_CALLS_LONG_SLICE_H_

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace hearth {

// How Linux reads it (sched_setattr(2)); glibc has no name for it.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes), policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;  // of SCHED_OTHER: the slice, 0
};

// The longest that Linux allows.
inline constexpr uint64_t kLongSliceNs = 100'000'000;

// While it lives, a thread with a usual slice that wakes on the calling thread's core takes the
// core at once; otherwise it would wait for the end of the slice, 3 ms or a tick of the clock. The
// shares of both stay the same. Linux 6.12 and later; does nothing elsewhere, or without
// permission. Made and destroyed by the same thread.
class LongSlice {
 public:
  LongSlice() { Ask(kLongSliceNs); }
  ~LongSlice() { Ask(0); }  // the usual one
  LongSlice(const LongSlice&) = delete;
  LongSlice& operator=(const LongSlice&) = delete;

 private:
  static void Ask(uint64_t slice_ns) {
    SchedulingAttributes attributes;
    const int policy = sched_getscheduler(0);
    if (policy != SCHED_OTHER && policy != SCHED_BATCH) return;
    attributes.policy = static_cast<uint32_t>(policy);
    attributes.nice = getpriority(PRIO_PROCESS, 0);
    attributes.runtime_ns = slice_ns;
    (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_LONG_SLICE_H_
