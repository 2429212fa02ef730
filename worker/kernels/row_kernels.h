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

#include "worker/kernels/base/rows.h"

namespace hearth {

// y = (x * inverse) * scale, inverse = 1 / sqrt(sum of squares / columns + epsilon). Gemma's scale
// is 1 + its weight. A head is a row of its own: with head_dim columns this is the norm of queries
// and keys, and may hold a factor of the queries. `y` may be `x`.
void RmsNorm(const ConstRows& x, int64_t columns, const float* scale, float epsilon, const Rows& y);

// y = gelu(gate) * up, with the tanh form of GELU. `y` may be `gate` or `up`.
void GeluTimes(const ConstRows& gate, const ConstRows& up, int64_t columns, const Rows& y);

// x = cap * tanh(x / cap). REQUIRES: cap > 0.
void Softcap(float cap, int64_t columns, const Rows& x);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ROW_KERNELS_H_
