// FloatMode: for its lifetime, sets the thread's floating-point mode: round to nearest, keep
// subnormal numbers, no traps. The kernels' bits are defined in this mode. A thread may have
// another mode, because libraries compiled with fast-math make threads flush subnormal numbers to
// zero.
//
// Thread safety: construct and destroy a FloatMode in the same thread.
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
  static constexpr unsigned kDefault = 0x1f80;  // value of MXCSR in a new process
  const unsigned before_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FLOAT_MODE_H_
