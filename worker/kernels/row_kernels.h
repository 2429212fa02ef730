// The row kernels: norms and activations. Each result row depends on its own input row alone.
//
// The written order of a sum over a row: sixteen partial sums from +0; partial sum j adds the
// elements i with i % 16 == j in ascending order, by FMA if the elements are products. Then the
// pairs (j, j + 8), (j, j + 4), (j, j + 2), (j, j + 1) are added. exp, tanh and the functions built
// from them are one sequence of operations, in tails too; square roots and divisions are IEEE's.
//
// Thread safety: pure functions; they set the floating-point mode (float_mode.h) while they run.
#ifndef HEARTH_WORKER_KERNELS_ROW_KERNELS_H_
#define HEARTH_WORKER_KERNELS_ROW_KERNELS_H_

#include <cstdint>

#include "worker/kernels/base/element.h"

namespace hearth {

// y = (x * inverse) * scale, inverse = 1 / sqrt(sum of squares / columns + epsilon). For Gemma,
// scale is 1 + the weight. For the norm of queries and keys call it for each head, with columns =
// head_dim; the scale may include a factor of the queries. `y` may be `x`.
void RmsNorm(const float* x, int64_t columns, const float* scale, float epsilon, float* y);

// y = gelu(gate) * up, with the tanh form of GELU. `y` may be `gate` or `up`.
void GeluTimes(const float* gate, const float* up, int64_t columns, float* y);

// x = cap * tanh(x / cap). REQUIRES: cap > 0.
void Softcap(float cap, int64_t columns, float* x);

// The operations below do a layer's work on a row between two products in one pass, while the row
// is in the first-level cache. Their bits equal those of the separate operations above.

// x = x + RmsNorm(y, y_scale), then normed = RmsNorm(x, x_scale): the end of one half of a layer
// and the beginning of the next. REQUIRES: the arrays do not overlap.
void AddNormAndNorm(const float* y, int64_t columns, const float* y_scale, const float* x_scale,
                    float epsilon, float* x, float* normed);

// Layout and norms of a row of queries, keys and values.
struct QkvShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // head_dim must be even
  const float *q_scale = nullptr, *k_scale = nullptr;
  float epsilon = 0;
  ElementType kv_type = ElementType::kFloat32;  // or kBFloat16, rounded to nearest, ties to even
};

// The place of one token: the angles of its position, and the addresses of its keys and values in
// elements of kv_type. Head h's keys are at keys + h * head_stride, its values at values + h *
// head_stride.
struct QkvToken {
  const float *cos = nullptr, *sin = nullptr;  // [head_dim / 2]
  std::byte *keys = nullptr, *values = nullptr;
  int64_t head_stride = 0;
};

// Processes one row [queries, keys, values], [(heads + 2 * kv_heads) * head_dim]. Each head of the
// queries is normed and rotated in place. Each head of the keys is normed and rotated into its
// place in a block. Values are copied to their place. The values in `row` do not change; the keys
// in `row` change only if kv_type is kBFloat16. REQUIRES: the places overlap no other memory.
void NormRotateAppend(const QkvShape& shape, const QkvToken& token, float* row);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ROW_KERNELS_H_
