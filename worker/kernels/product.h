// Product: rows times weights, y[m][n] = sum over k of x[m][k] * w[n][k], in float32, or where the
// weights' arithmetic says so in integers (integer_product.h).
//
// The written order of float32: each output is one chain acc = fma(x[m][k], w[n][k], acc), from
// acc = +0, over k in ascending order. It is the same for any number of rows, any vector width and
// any split into parts: a row's bits depend on that row and the weights alone. (Of a NaN only that
// it is one.)
//
// Thread safety: reentrant; a workspace serves one call at a time.
#ifndef HEARTH_WORKER_KERNELS_PRODUCT_H_
#define HEARTH_WORKER_KERNELS_PRODUCT_H_

#include "absl/types/span.h"
#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/packed_weights.h"

namespace hearth {

// REQUIRES: x has weights.inputs() columns and y weights.outputs(); y.rows == x.rows; y overlaps
// neither x nor the weights.
void AddProduct(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                Workspace* workspace, KernelPhases* phases);
// Matrices of the same inputs, their outputs side by side: rows are packed once for those beside
// each other that have one arithmetic.
void AddProducts(const ConstRows& x, absl::Span<const PackedWeights> all, const Rows& y,
                 Workspace* workspace, KernelPhases* phases);
// The same with a separate place for each row: y[row] has weights.outputs() floats. The span must
// stay valid until the list has run.
void AddProductTo(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                  Workspace* workspace, KernelPhases* phases);
// AddProduct at once.
void Product(const ConstRows& x, const PackedWeights& weights, const Rows& y, Workspace* workspace,
             ParallelFor parallel);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_PRODUCT_H_
