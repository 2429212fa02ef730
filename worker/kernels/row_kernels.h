// The row kernels: norms and activations, each of whose rows depends on that row alone.
//
// The written order of a sum over a row: sixteen partial sums, of which number j takes the elements
// i with i % 16 == j in ascending order, from +0, by FMA where it is a sum of products; then
// (j, j + 8), (j, j + 4), (j, j + 2), (j, j + 1) are added. exp, tanh and what is made of them are
// one sequence of operations, tails included; square roots and divisions are IEEE's.
//
// Thread safety: pure functions; they set the floating-point mode (float_mode.h) while they run.
#ifndef HEARTH_WORKER_KERNELS_ROW_KERNELS_H_
#define HEARTH_WORKER_KERNELS_ROW_KERNELS_H_

#include <cstdint>

#include "worker/kernels/base/element.h"

namespace hearth {

// y = (x * inverse) * scale, inverse = 1 / sqrt(sum of squares / columns + epsilon). Gemma's scale
// is 1 + its weight. A head is a row of its own: with head_dim columns this is the norm of queries
// and keys, and may hold a factor of the queries. `y` may be `x`.
void RmsNorm(const float* x, int64_t columns, const float* scale, float epsilon, float* y);

// y = gelu(gate) * up, with the tanh form of GELU. `y` may be `gate` or `up`.
void GeluTimes(const float* gate, const float* up, int64_t columns, float* y);

// x = cap * tanh(x / cap). REQUIRES: cap > 0.
void Softcap(float cap, int64_t columns, float* x);

// The operations of a layer on a row between two products, in one pass while the row is in the
// first-level cache, with the bits of those above one after the other:

// x = x + RmsNorm(y, y_scale), and normed = RmsNorm(x, x_scale): the end of one half of a layer and
// the beginning of the next. REQUIRES: no overlap.
void AddNormAndNorm(const float* y, int64_t columns, const float* y_scale, const float* x_scale,
                    float epsilon, float* x, float* normed);

// How a row of queries, keys and values is laid out and normed.
struct QkvShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // head_dim is even
  const float *q_scale = nullptr, *k_scale = nullptr;
  float epsilon = 0;
  ElementType kv_type = ElementType::kFloat32;  // or kBFloat16: rounded to nearest, ties to even
};

// One token of its sequence: the angles of its position, and where its KV goes, in elements of
// kv_type: head h's keys at keys + h * head_stride, its values likewise.
struct QkvToken {
  const float *cos = nullptr, *sin = nullptr;  // [head_dim / 2]
  std::byte *keys = nullptr, *values = nullptr;
  int64_t head_stride = 0;
};

// Of one row [queries, keys, values]: each head of queries is normed and rotated where it is, each
// of keys is normed and rotated into its place in a block, values are copied there. The row's own
// values stay as they are, and its keys where kv_type is kFloat32. REQUIRES: the places overlap
// nothing else.
void NormRotateAppend(const QkvShape& shape, const QkvToken& token, float* row);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ROW_KERNELS_H_
