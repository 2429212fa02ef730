// FloatMode: sets, while it lives, the floating-point mode in which the kernels' bits are defined:
// round to nearest, subnormal numbers kept, no traps. A thread may arrive in another mode:
// libraries compiled with fast-math flush subnormal numbers in every thread that loads them.
//
// Thread safety: construct and destroy it in the same thread.
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
  static constexpr unsigned kDefault = 0x1f80;  // the mode of a new process
  const unsigned before_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FLOAT_MODE_H_
