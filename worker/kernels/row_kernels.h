// The row kernels: norms and activations. Each output row depends only on its input row.
//
// The order of operations of a sum over a row: there are sixteen partial sums, each starting at +0.
// Partial sum j adds the elements i with i % 16 == j in ascending order; if the elements are
// products, by FMA. Then the pairs (j, j + 8), (j, j + 4), (j, j + 2), (j, j + 1) are added. exp,
// tanh and the functions built from them use the same sequence of operations for every element;
// square roots and divisions follow IEEE 754.
//
// Thread safety: pure functions; each call sets the floating-point mode (float_mode.h) while it
// runs.
#ifndef HEARTH_WORKER_KERNELS_ROW_KERNELS_H_
#define HEARTH_WORKER_KERNELS_ROW_KERNELS_H_

#include <cstdint>

#include "worker/kernels/base/element.h"

namespace hearth {

// y = (x * inverse) * scale, where inverse = 1 / sqrt(sum of squares / columns + epsilon). In
// Gemma, scale is 1 + the stored norm weight. For the norm of queries and keys, call this function
// for each head with columns = head_dim; the scale may include the query scale of the attention.
// `y` may be `x`.
void RmsNorm(const float* x, int64_t columns, const float* scale, float epsilon, float* y);

// y = gelu(gate) * up, with the tanh form of GELU. `y` may be `gate` or `up`.
void GeluTimes(const float* gate, const float* up, int64_t columns, float* y);

// x = cap * tanh(x / cap). REQUIRES: cap > 0.
void Softcap(float cap, int64_t columns, float* x);

// Each of the following functions does all of a layer's work on a row between two products, while
// the row is in the L1 cache. The bits equal those of the separate functions above.

// x = x + RmsNorm(y, y_scale), then normed = RmsNorm(x, x_scale): the norms between two halves of a
// layer, or between two layers. REQUIRES: the arrays do not overlap.
void AddNormAndNorm(const float* y, int64_t columns, const float* y_scale, const float* x_scale,
                    float epsilon, float* x, float* normed);

// Layout of a row of queries, keys and values, and the norms of its heads.
struct QkvShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // head_dim must be even
  const float *q_scale = nullptr, *k_scale = nullptr;
  float epsilon = 0;
  // kFloat32 or kBFloat16; bfloat16 is rounded to nearest, ties to even
  ElementType kv_type = ElementType::kFloat32;
  bool values_are_finite = false;  // exact::FiniteBf16 of each bfloat16 value is written
};

// Where one token's keys and values are written, and the RoPE angles of its position. The addresses
// point to elements of kv_type. KV head h has its keys at keys + h * head_stride and its values at
// values + h * head_stride; head_stride counts elements.
struct QkvToken {
  const float *cos = nullptr, *sin = nullptr;  // [head_dim / 2]
  std::byte *keys = nullptr, *values = nullptr;
  int64_t head_stride = 0;
};

// Processes one row [queries, keys, values] of (heads + 2 * kv_heads) * head_dim floats. Each query
// head is normed and rotated (RoPE) in place. Each key head is normed, rotated and written to
// token.keys. Values are copied to token.values. The values in `row` do not change; the keys in
// `row` change only if kv_type is kBFloat16. REQUIRES: the destinations overlap no other memory.
void NormRotateAppend(const QkvShape& shape, const QkvToken& token, float* row);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ROW_KERNELS_H_
