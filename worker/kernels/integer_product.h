// Integer products: rows times weights in blocks, with the rows in blocks of 32 integers too. What
// product.h is where the weights' arithmetic is kInt8.
//
// The written order. A row is padded with zeros to a multiple of 32. Of each block of it:
//   m = the largest |x|, NaN where one is NaN
//   m not finite              d = NaN, all q = 0
//   m < 2^-100, zero included d = 0, all q = 0
//   else                      d = m / 127, q = the integer nearest to x * (127 / m), of two as near
//                             the even one; each operation rounded to float32
// An output begins at y = +0 and takes the blocks in ascending order. With w the 32 weights'
// integers and d_w their scale (weight_blocks.h; d * scale of Q4_K and Q5_K):
//   s = the sum of q * w, an integer
//   y = fma(float(s), d * d_w, y)
// Of Q6_K s = part[0] * s0 + part[1] * s1, with the sums of the two halves; below 2^24, so exact.
// Where there is a least value m_w, then y = fma(float(sum of q), d * m_w, y), in the same block.
//
// An integer sum is exact, so that its order is free: every kernel gives the same bits. (Of a NaN
// only that it is one.)
//
// Thread safety: reentrant; ForceIntegerKernel is for tests and the self-test: no list of kernels
// may run meanwhile.
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

// How sums are made, where a target has vectors: the slowest first.
enum class IntegerKernel { kAvx2, kAvxVnni, kAvx512Vnni };
const char* IntegerKernelName(IntegerKernel kernel);
std::vector<IntegerKernel> UsableIntegerKernels();  // those that this CPU can run
IntegerKernel ChosenIntegerKernel();                // the last of them, unless another was forced
void ForceIntegerKernel(IntegerKernel kernel);      // REQUIRES: usable

// Private to worker/kernels: rows as the product's tiles read them, and a panel by some of them.
inline constexpr int64_t kIntegerTileRows = 4;
int64_t QuantizedRowBytes(int64_t inputs);
// The rows, where AddQuantizing's loop puts them.
PackedRows QuantizedRows(const ConstRows& x, int64_t inputs, Workspace* workspace);
// The workspace has its room at once. A row is quantized in the loop before, where that is by rows:
// that loop must neither use the workspace nor make a row of x but at the same number.
void AddQuantizing(const ConstRows& x, int64_t inputs, Workspace* workspace, KernelPhases* phases);
// Tiles [first, end) of the rows: chains[row - first row][kPanelOutputs].
void IntegerPanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel,
                        int64_t first, int64_t end, float* chains);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_INTEGER_PRODUCT_H_
