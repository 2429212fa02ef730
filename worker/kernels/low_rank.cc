#include "worker/kernels/low_rank.h"

#include <cassert>
#include <memory>

#include "worker/kernels/base/owned_rows.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/product.h"

namespace hearth {

void AddLowRank(const ConstRows& x, const LowRank& delta, const Rows& y, Workspace* workspace,
                KernelPhases* phases) {
  const int64_t rank = delta.a.outputs(), outputs = delta.b.outputs();
  assert(x.rows == y.rows && delta.b.inputs() == rank);
  assert(delta.first_output >= 0 && delta.first_output + outputs <= y.stride);
  const auto inner = std::make_shared<OwnedRows>(x.rows, rank);
  const auto sum = std::make_shared<OwnedRows>(x.rows, outputs);
  AddProduct(x, delta.a, inner->view, workspace, phases);
  AddProduct({inner->view.data, x.rows, rank}, delta.b, sum->view, workspace, phases);
  phases->AddRows(x.rows, [=, scale = delta.scale, first = delta.first_output](int64_t row) {
    (void)inner;  // until here
    const FloatMode mode;
    const float* from = sum->view.Row(row);
    float* to = y.Row(row) + first;
    for (int64_t i = 0; i < outputs; ++i) to[i] = to[i] + scale * from[i];
  });
}

}  // namespace hearth
