// Integer products: rows times quantized weights, where each row is also quantized, to blocks of 32
// 8-bit integers. Product (product.h) uses these functions if the weights' arithmetic is kInt8.
//
// The order of operations. A row is padded with zeros to a multiple of 32. For each block of the
// row:
//   m = the largest |x|; NaN if any x is NaN. Three cases:
//   m not finite              d = NaN, all q = 0
//   m < 2^-100, zero included d = 0, all q = 0
//   else                      d = m / 127, q = the integer nearest to x * (127 / m), ties to even;
//                             each operation rounded to float32
// The sum y of an output starts at +0 and adds the blocks in ascending order. Let w be the 32
// integers of the weights, and d_w their scale (weight_blocks.h; for Q4_K and Q5_K, d_w is d *
// scale):
//   s = the sum of q * w, an integer
//   y = fma(float(s), d * d_w, y)
// For Q6_K, s = part[0] * s0 + part[1] * s1, where s0 and s1 are the sums of the two halves; s is
// below 2^24, so it is exact in float32. If the type has a least value m_w, the same block then
// adds y = fma(float(sum of q), d * m_w, y).
//
// Integer sums are exact in any order, so every kernel gives the same bits (NaNs may differ in
// their payload).
//
// Thread safety: reentrant. ForceIntegerKernel is for tests and for the worker's self-test; call it
// only while no kernel runs.
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

// Instruction sets for the integer sums, slowest first. They need a Highway target with vectors.
enum class IntegerKernel { kAvx2, kAvxVnni, kAvx512Vnni };
const char* IntegerKernelName(IntegerKernel kernel);
std::vector<IntegerKernel> UsableIntegerKernels();  // the kernels that this CPU can run
// the fastest usable kernel, unless ForceIntegerKernel set another one
IntegerKernel ChosenIntegerKernel();
void ForceIntegerKernel(IntegerKernel kernel);  // REQUIRES: `kernel` is usable

// Private to worker/kernels: tiles of quantized rows, and their product with one panel of weights.
inline constexpr int64_t kIntegerTileRows = 4;
int64_t QuantizedRowBytes(int64_t inputs);
// Returns where in `workspace` AddQuantizing's loop writes the quantized rows.
PackedRows QuantizedRows(const ConstRows& x, int64_t inputs, Workspace* workspace);
// Adds the quantization of rows to `phases` and allocates its buffer in `workspace` immediately. If
// the previous loop in `phases` is over the same rows, the quantization of each row is appended to
// that loop. REQUIRES: that loop does not use the workspace, and its body for row r writes no row
// of x except row r.
void AddQuantizing(const ConstRows& x, int64_t inputs, Workspace* workspace, KernelPhases* phases);
// Multiplies tiles [first, end) of the rows by one panel. Writes chains[row - first
// row][kPanelOutputs].
void IntegerPanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel,
                        int64_t first, int64_t end, float* chains);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_INTEGER_PRODUCT_H_
