// Products whose outputs are used where they are computed: panel by panel, before they leave the
// caches. The bits are those of the kernels one after the other.
//
// Thread safety: reentrant; a workspace serves one call at a time.
#ifndef HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_
#define HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "worker/kernels/base/parallel.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/base/workspace.h"
#include "worker/kernels/packed_weights.h"

namespace hearth {

// y = gelu(x * gate) * (x * up): Product twice, then GeluTimes (row_kernels.h), without their
// outputs in memory. REQUIRES: gate and up have the same type, inputs and outputs; else as Product.
void AddGeluProduct(const ConstRows& x, const PackedWeights& gate, const PackedWeights& up,
                    const Rows& y, Workspace* workspace, KernelPhases* phases);
// The same at once.
void GeluProduct(const ConstRows& x, const PackedWeights& gate, const PackedWeights& up,
                 const Rows& y, Workspace* workspace, ParallelFor parallel);

struct TopOutput {
  float value = 0;
  int64_t output = -1;
};

// A larger value comes first; of equal ones (+0 and -0 are) the smaller output; NaN comes last.
inline bool ComesBefore(const TopOutput& a, const TopOutput& b) {
  if (a.value > b.value) return true;
  if (a.value < b.value) return false;
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  return a_is_nan != b_is_nan ? b_is_nan : a.output < b.output;
}

// The first `count` outputs of each row, in order: top[row * count]. Product, Softcap
// (row_kernels.h) where softcap > 0, and a choice of the first, without all outputs in memory.
// REQUIRES: 1 <= count <= weights.outputs(), top.size() == x.rows * count; else as Product.
void TopOfProduct(const ConstRows& x, const PackedWeights& weights, float softcap, int64_t count,
                  absl::Span<TopOutput> top, Workspace* workspace, ParallelFor parallel);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_H_
