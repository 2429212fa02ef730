// ProbeFusedDot: compares single steps of a device's matrix instruction for bfloat16 with FusedDot
// (worker/kernels/fused_dot.h). Only compute capability 9.0 is known to give the same bits.
//
// Thread safety: one thread uses the device. Errors: if a call fails, device->error() is set.
#ifndef HEARTH_WORKER_DEVICE_FUSED_DOT_PROBE_H_
#define HEARTH_WORKER_DEVICE_FUSED_DOT_PROBE_H_

#include "worker/device/device.h"

namespace hearth {

struct FusedDotProbe {
  int sums = 0, differing = 0;  // number of sums compared, and of sums with other bits
};

// Multiplies 16 rows by 64 columns of random values in three steps. The values of a step have many
// different exponents, so another cut or another division of the 16 products changes most results.
FusedDotProbe ProbeFusedDot(Device* device);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_FUSED_DOT_PROBE_H_
