#include "worker/kernels/layer.h"

#include <cassert>

#include "worker/kernels/fused_products.h"
#include "worker/kernels/product.h"

namespace hearth {
namespace {

ConstRows In(const Rows& rows) { return {rows.data, rows.rows, rows.stride}; }

// x += norm(projected), normed = norm(x).
void AddSumAndNorms(const Rows& projected, const float* scale, const float* next_scale,
                    float epsilon, const Rows& x, const Rows& normed, int64_t columns,
                    KernelPhases* phases) {
  phases->AddRows(x.rows, [=](int64_t row) {
    const Rows next{normed.Row(row), 1, columns};
    AddNormAndNorm({projected.Row(row), 1, columns}, columns, scale, next_scale, epsilon,
                   {x.Row(row), 1, columns}, &next);
  });
}

}  // namespace

void AddLayer(const LayerWeights& weights, const float* next_norm, const LayerRows& rows,
              Workspace* workspace, KernelPhases* phases) {
  assert(static_cast<int64_t>(rows.tokens.size()) == rows.x.rows);
  const int64_t hidden = weights.out->outputs();
  const float epsilon = weights.heads.epsilon;
  AddProduct(In(rows.normed), *weights.qkv, rows.qkv, workspace, phases);
  phases->AddRows(rows.x.rows,
                  [heads = weights.heads, qkv = rows.qkv, tokens = rows.tokens](int64_t row) {
                    NormRotateAppend(heads, tokens[static_cast<size_t>(row)], qkv.Row(row));
                  });
  AddAttend(weights.attend, rows.sequences, In(rows.qkv), rows.attended, workspace, phases);
  AddProduct(In(rows.attended), *weights.out, rows.projected, workspace, phases);
  AddSumAndNorms(rows.projected, weights.post_attention_norm, weights.pre_feedforward_norm, epsilon,
                 rows.x, rows.normed, hidden, phases);
  AddGeluProduct(In(rows.normed), *weights.gate, *weights.up, rows.gated, workspace, phases);
  AddProduct(In(rows.gated), *weights.down, rows.projected, workspace, phases);
  AddSumAndNorms(rows.projected, weights.post_feedforward_norm, next_norm, epsilon, rows.x,
                 rows.normed, hidden, phases);
}

}  // namespace hearth
