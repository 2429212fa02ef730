// Product: rows times weights, y[m][n] = sum over k of x[m][k] * w[n][k], in float32; or in
// integers if the weights' arithmetic is kInt8 (integer_product.h).
//
// The written order of float32: each output is one chain acc = fma(x[m][k], w[n][k], acc), from acc
// = +0, over k in ascending order. The order is the same for any number of rows, any vector width
// and any split into parts, so a row's bits depend only on the row and the weights (NaNs may differ
// in their payload).
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

// x: [rows][weights.inputs()], y: [rows][weights.outputs()]. REQUIRES: y overlaps neither x nor the
// weights.
void AddProduct(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                Workspace* workspace, KernelPhases* phases);
// As AddProduct, for several matrices with the same inputs; their outputs lie side by side in y.
// Adjacent matrices with the same arithmetic share the packed rows.
void AddProducts(const ConstRows& x, absl::Span<const PackedWeights> all, const Rows& y,
                 Workspace* workspace, KernelPhases* phases);
// As AddProduct, with an address for each row: y[row] has weights.outputs() floats. The span must
// stay valid until the list has run.
void AddProductTo(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                  Workspace* workspace, KernelPhases* phases);
// Adds the product to a list and runs the list.
void Product(const ConstRows& x, const PackedWeights& weights, const Rows& y, Workspace* workspace,
             ParallelFor parallel);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_PRODUCT_H_
