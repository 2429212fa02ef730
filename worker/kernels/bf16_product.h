// bfloat16 products as tensor cores compute them: rows times bfloat16 weights, where each row is
// also rounded to bfloat16. Product (product.h) uses this function if the weights' arithmetic is
// kBFloat16; on devices, Bf16ProductProgram (worker/device/bf16_product_program.h) gives the same
// bits.
//
// The order of operations: each value of a row is rounded to the nearest bfloat16, ties to even.
// The row and the weights are padded with zeros to a multiple of 16 inputs. Each output starts with
// sum = +0 and computes sum = FusedDot(row + k, weights + k, sum) (fused_dot.h) for k = 0, 16, 32
// and so on. The result is float32.
//
// On the CPU such a product takes 10 to 50 times as long as one in float32. The CPU computes it for
// the self-test of a device, and for tests.
//
// Thread safety: a pure function.
#ifndef HEARTH_WORKER_KERNELS_BF16_PRODUCT_H_
#define HEARTH_WORKER_KERNELS_BF16_PRODUCT_H_

#include <cstdint>

#include "worker/kernels/base/rows.h"
#include "worker/kernels/packed_weights.h"

namespace hearth {

// Private to worker/kernels: multiplies tiles [first, end) of the rows by one panel of weights.
// Writes chains[row - first row][kPanelOutputs].
void Bf16PanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel,
                     int64_t first, int64_t end, float* chains);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BF16_PRODUCT_H_
