// Compares WarpgroupProductProgram with Bf16ProductProgram on a device.
//
// Thread safety: that of the device.
#ifndef HEARTH_WORKER_DEVICE_WARPGROUP_CHECK_H_
#define HEARTH_WORKER_DEVICE_WARPGROUP_CHECK_H_

#include "worker/device/device.h"

namespace hearth {

// Multiplies random rows and weights, of normal and of very different exponents, with each tiling
// of WarpgroupProductProgram. Returns the number of outputs whose bits are not those of
// Bf16ProductProgram. If the device fails, device->error() is set. REQUIRES:
// device->has_warpgroups().
int DifferingWarpgroupOutputs(Device* device);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_WARPGROUP_CHECK_H_
