// Integer products: rows times weights in blocks, with the rows quantized to blocks of 32 integers
// too. Product (product.h) uses this file if the weights' arithmetic is kInt8.
//
// The written order. A row is padded with zeros to a multiple of 32. For each block of the row:
//   m = the largest |x|; NaN if any x is NaN
//   m not finite              d = NaN, all q = 0
//   m < 2^-100, zero included d = 0, all q = 0
//   else                      d = m / 127, q = the integer nearest to x * (127 / m), ties to even;
//                             each operation rounded to float32
// An output begins at y = +0 and adds the blocks in ascending order. With w the 32 integers of the
// weights and d_w their scale (weight_blocks.h; for Q4_K and Q5_K, d * scale):
//   s = the sum of q * w, an integer
//   y = fma(float(s), d * d_w, y)
// For Q6_K, s = part[0] * s0 + part[1] * s1, with the sums s0 and s1 of the two halves; s is below
// 2^24, so it is exact. If the type has a least value m_w, then y = fma(float(sum of q), d * m_w,
// y) follows in the same block.
//
// Integer sums are exact, so their order is free and every kernel gives the same bits (NaNs may
// differ in their payload).
//
// Thread safety: reentrant. ForceIntegerKernel is for tests and the self-test: no list of kernels
// may run during the call.
#ifndef HEARTH_WORKER_KERNELS_INTEGER_PRODUCT_H_
#define HEARTH_WORKER_KERNELS_INTEGER_PRODUCT_H_

#include <cstdint>
#include <vector>

#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/packed_weights.h"

namespace hearth {

inline constexpr float kLeastQuantized = 0x1p-100f;

// Instruction sets that compute the integer sums, on a target with vectors; the slowest first.
enum class IntegerKernel { kAvx2, kAvxVnni, kAvx512Vnni };
const char* IntegerKernelName(IntegerKernel kernel);
std::vector<IntegerKernel> UsableIntegerKernels();  // the kernels that this CPU can run
IntegerKernel ChosenIntegerKernel();                // the last usable kernel, unless forced
void ForceIntegerKernel(IntegerKernel kernel);      // REQUIRES: `kernel` is usable

// Private to worker/kernels: rows quantized in tiles, and the product of one panel with some tiles.
inline constexpr int64_t kIntegerTileRows = 4;
int64_t QuantizedRowBytes(int64_t inputs);
// Returns the place in `workspace` to which AddQuantizing's loop writes the quantized rows.
PackedRows QuantizedRows(const ConstRows& x, int64_t inputs, Workspace* workspace);
// Adds the quantization of rows to `phases`, and allocates its room in `workspace` now. If the
// previous loop is a loop over the same rows, each row is quantized there: that loop must not use
// the workspace, and its body for row r must write no row of x except row r.
void AddQuantizing(const ConstRows& x, int64_t inputs, Workspace* workspace, KernelPhases* phases);
// Multiplies tiles [first, end) of the rows by one panel, to chains[row - first
// row][kPanelOutputs].
void IntegerPanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel,
                        int64_t first, int64_t end, float* chains);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_INTEGER_PRODUCT_H_
