// Product: multiplies rows by a weight matrix, y[m][n] = sum over k of x[m][k] * w[n][k]. The
// arithmetic is that of the weights: float32, integers (integer_product.h), or bfloat16
// (bf16_product.h).
//
// The order of operations in float32: each output starts with acc = +0 and computes acc =
// fma(x[m][k], w[n][k], acc) for k in ascending order. The order is the same for any number of
// rows, any vector width and any division among threads, so a row's bits depend only on the row and
// the weights (NaNs may differ in their payload).
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

// Adds the loops of a product to `phases`. x: [rows][weights.inputs()], y:
// [rows][weights.outputs()]. REQUIRES: y overlaps neither x nor the weights.
void AddProduct(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                Workspace* workspace, KernelPhases* phases);
// Adds the products of x with several matrices that have the same inputs; their outputs are
// adjacent columns of y. Adjacent matrices with the same arithmetic use the same packed rows.
void AddProducts(const ConstRows& x, absl::Span<const PackedWeights> all, const Rows& y,
                 Workspace* workspace, KernelPhases* phases);
// Adds a product that writes each row to a separate address: y[row] has weights.outputs() floats.
// The span must stay valid until the list has run.
void AddProductTo(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                  Workspace* workspace, KernelPhases* phases);
// Computes a product immediately.
void Product(const ConstRows& x, const PackedWeights& weights, const Rows& y, Workspace* workspace,
             ParallelFor parallel);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_PRODUCT_H_
