// A product fused with the operation that uses its outputs, panel by panel, while they are in the
// caches. The bits equal those of the separate kernels.
//
// Thread safety: reentrant; a workspace serves one call at a time.
#ifndef HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_
#define HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_

#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/packed_weights.h"

namespace hearth {

// y = gelu(x * gate) * (x * up): two Products and GeluTimes (row_kernels.h) without their outputs
// in memory. REQUIRES: `gate` and `up` have the same type, inputs and outputs; else as Product.
void AddGeluProduct(const ConstRows& x, const PackedWeights& gate, const PackedWeights& up,
                    const Rows& y, Workspace* workspace, KernelPhases* phases);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_
