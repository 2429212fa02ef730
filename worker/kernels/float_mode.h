// FloatMode: the floating-point mode that the kernels' bits are defined in, while it lives: round
// to nearest, subnormal numbers kept, nothing trapped. A thread may come with another one:
// libraries that were compiled for speed turn subnormal numbers off in every thread that loads
// them.
//
// Thread safety: it is of the thread that made it, and ends there.
#ifndef HEARTH_WORKER_KERNELS_FLOAT_MODE_H_
#define HEARTH_WORKER_KERNELS_FLOAT_MODE_H_

#include <xmmintrin.h>

namespace hearth {

class FloatMode {
 public:
  FloatMode() : before_(_mm_getcsr()) {
    if (before_ != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatMode() {
    if (before_ != kDefault) _mm_setcsr(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;  // as a process starts with it
  const unsigned before_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FLOAT_MODE_H_
