// The operations of a layer on a row between two products, in one pass while the row is in the
// first-level cache. The bits are those of the kernels of row_kernels.h one after the other.
//
// Thread safety: pure functions; they set the floating-point mode (float_mode.h) while they run.
#ifndef HEARTH_WORKER_KERNELS_FUSED_ROWS_H_
#define HEARTH_WORKER_KERNELS_FUSED_ROWS_H_

#include <cstdint>

#include "worker/kernels/base/rows.h"

namespace hearth {

// x = x + RmsNorm(y, y_scale), and where `normed` is not null, normed = RmsNorm(x, x_scale): the
// end of one half of a layer and the beginning of the next. REQUIRES: as many rows in each; no
// overlap.
void AddNormAndNorm(const ConstRows& y, int64_t columns, const float* y_scale, const float* x_scale,
                    float epsilon, const Rows& x, const Rows* normed);

// How a row of queries, keys and values is laid out and normed.
struct QkvShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // head_dim is even
  const float *q_scale = nullptr, *k_scale = nullptr;
  float epsilon = 0;
};

// One token of its sequence: the angles of its position, and where its KV goes: head h's keys at
// keys + h * head_stride, its values likewise.
struct QkvToken {
  const float *cos = nullptr, *sin = nullptr;  // [head_dim / 2]
  float *keys = nullptr, *values = nullptr;
  int64_t head_stride = 0;
};

// Of one row [queries, keys, values]: each head of queries is normed and rotated where it is, each
// of keys is normed and rotated into its place in a block, values are copied there. The row's keys
// and values stay as they are. REQUIRES: the places overlap nothing else.
void NormRotateAppend(const QkvShape& shape, const QkvToken& token, float* row);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUSED_ROWS_H_
