// LowRank: what a low-rank adapter adds to some outputs of a product, y[first + n] += scale *
// sum over j of b[n][j] * (sum over k of a[j][k] * x[k]) (LoRA: Hu et al. 2021, arXiv:2106.09685,
// equation 3).
//
// Both sums are Product's, in its written order, then one multiplication and one addition for each
// output: a row's bits depend on that row and the weights alone.
#ifndef HEARTH_WORKER_KERNELS_LOW_RANK_H_
#define HEARTH_WORKER_KERNELS_LOW_RANK_H_

#include <cstdint>
#include <vector>

#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/base/workspace.h"
#include "worker/kernels/packed_weights.h"

namespace hearth {

struct LowRank {
  PackedWeights a, b;  // [rank][inputs] and [outputs][rank]
  float scale = 1;
  int64_t first_output = 0;  // of the product that it is added to
};

// Those of one layer, by the product that they are added to.
struct AdapterLayer {
  std::vector<LowRank> qkv, out, gate, up, down;
};

// Adjacent rows of a step that go through an adapter, in one layer. Not owned.
struct AdapterRows {
  int64_t first = 0, rows = 0;
  const AdapterLayer* layer = nullptr;
};

// REQUIRES: x has delta.a.inputs() columns, y at least delta.first_output + delta.b.outputs();
// y.rows == x.rows. The list owns the memory in between.
void AddLowRank(const ConstRows& x, const LowRank& delta, const Rows& y, Workspace* workspace,
                KernelPhases* phases);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LOW_RANK_H_
