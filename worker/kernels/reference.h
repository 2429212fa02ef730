// Reference kernels in plain C++: one element after the other, in the documented order of
// operations. They define the bits of all kernels: tests compare the other kernels with them, and a
// CPU without AVX2 runs them.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_KERNELS_REFERENCE_H_
#define HEARTH_WORKER_KERNELS_REFERENCE_H_

#include <cstdint>

#include "worker/kernels/attend.h"
#include "worker/kernels/functions.h"
#include "worker/kernels/packed_weights.h"
#include "worker/kernels/product.h"

namespace hearth {
namespace reference {

// Computes outputs [begin, end) of one row of Product (product.h), in the weights' arithmetic.
// Writes y[n - begin].
void ProductRow(const float* x, const PackedWeights& weights, int64_t begin, int64_t end, float* y);

// At most 32 values of a row, quantized for integer products (integer_product.h): d * q[i]
// approximates value i.
struct IntegerBlock {
  float d = 0;
  int q[32] = {};
};
IntegerBlock QuantizeBlock(const float* x, int64_t count);

// Reference versions of the operations in row_kernels.h.
float Dot(const float* a, const float* b, int64_t count);
void RmsNormRow(const float* x, int64_t columns, const float* scale, float epsilon, float* y);
void RotateRow(const float* cos, const float* sin, int64_t half, float* x);
using exact::Exp;
using exact::Gelu;
using exact::Tanh;
using exact::TreeSum;

// Attention (attend.h) of one row for one query head. `sequence` may have sealed blocks.
void AttendRow(const AttendShape& shape, const AttendSequence& sequence, int64_t kv_head,
               int64_t position, const float* query, float* out);
void AttendRow(const AttendShape& shape, const std::byte* const* blocks, int64_t kv_head,
               int64_t position, const float* query, float* out);

}  // namespace reference
}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_REFERENCE_H_
