// A matrix product fused with the operation that uses its outputs. Each panel of outputs is used
// while it is in the CPU caches. The bits equal those of the separate kernels.
//
// Thread safety: reentrant; a workspace serves one call at a time.
#ifndef HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_
#define HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_

#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/packed_weights.h"

namespace hearth {

// Computes y = gelu(x * gate) * (x * up). The bits equal those of two Products and GeluTimes
// (row_kernels.h), but the outputs of the two products are not written to memory. REQUIRES: `gate`
// and `up` have the same type, arithmetic, inputs and outputs; y overlaps neither x nor the
// weights.
void AddGeluProduct(const ConstRows& x, const PackedWeights& gate, const PackedWeights& up,
                    const Rows& y, Workspace* workspace, KernelPhases* phases);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_
