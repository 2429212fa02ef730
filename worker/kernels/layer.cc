#include "worker/kernels/layer.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <vector>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/fused_products.h"
#include "worker/kernels/product.h"
#include "worker/kernels/row_kernels.h"

namespace hearth {
namespace {

ConstRows AsConst(const Rows& rows) { return {rows.data, rows.rows, rows.stride}; }

Rows Slice(const Rows& rows, int64_t first, int64_t count) {
  return {rows.Row(first), count, rows.stride};
}

using LowRanks = std::vector<LowRank> AdapterLayer::*;

// Adds a layer's operations to a list of loops. Each operation applies the hooks; the products of
// LoRA adapters follow the base product.
class LayerList {
 public:
  LayerList(Workspace* workspace, KernelPhases* phases, const LayerHooks* hooks,
            absl::Span<const AdapterRows> adapters = {})
      : workspace_(workspace), phases_(phases), hooks_(hooks), adapters_(adapters) {}

  // `weights`: matrices whose outputs are adjacent columns of `y`.
  void Product(const char* operation, const Rows& x, absl::Span<const PackedWeights> weights,
               LowRanks low_ranks, const Rows& y) {
    const int64_t outputs = AddBoth(x, weights, low_ranks, y);
    Observe(operation, y, outputs);
  }

  void GeluProduct(const char* operation, const Rows& x, const PackedWeights& gate,
                   const PackedWeights& up, const Rows& y) {
    if (IsReplaced() || !adapters_.empty() || gate.type() != up.type()) {
      const int64_t width = up.outputs();
      const auto other = std::make_shared<OwnedRows>(y.rows, width);
      AddBoth(x, {&gate, 1}, &AdapterLayer::gate, y);
      AddBoth(x, {&up, 1}, &AdapterLayer::up, other->view);
      phases_->AddRows(y.rows, [y, other, width](int64_t row) {
        GeluTimes(y.Row(row), other->view.Row(row), width, y.Row(row));
      });
    } else {
      AddGeluProduct(AsConst(x), gate, up, y, workspace_, phases_);
    }
    Observe(operation, y, gate.outputs());
  }

  // x += norm(projected), normed = norm(x).
  void SumAndNorms(const char* operation, const LayerRows& rows, const float* scale,
                   const float* next_scale, float epsilon, int64_t columns) {
    phases_->AddRows(rows.x.rows, [=, projected = rows.projected, x = rows.x,
                                   normed = rows.normed](int64_t row) {
      AddNormAndNorm(projected.Row(row), columns, scale, next_scale, epsilon, x.Row(row),
                     normed.Row(row));
    });
    Observe(operation, rows.x, columns);
    Observe(operation, rows.normed, columns);
  }

  void Observe(const char* operation, const Rows& values, int64_t columns) {
    if (hooks_ == nullptr || hooks_->observer == nullptr) return;
    phases_->Add(1, [=, hooks = hooks_](int64_t) { hooks->observer(operation, values, columns); });
  }

  void ProductTo(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y) {
    if (!IsReplaced()) return AddProductTo(x, weights, y, workspace_, phases_);
    const int64_t width = weights.outputs();
    const auto all = std::make_shared<OwnedRows>(x.rows, width);
    AddReplaced(x, weights, all->view);
    phases_->Add(x.rows, [=](int64_t row) {
      std::copy_n(all->view.Row(row), width, y[static_cast<size_t>(row)]);
    });
  }

 private:
  // Adds the base products and the products of the LoRA adapters; returns the number of outputs.
  int64_t AddBoth(const Rows& x, absl::Span<const PackedWeights> all, LowRanks low_ranks,
                  const Rows& y) {
    int64_t outputs = 0;
    if (!IsReplaced()) AddProducts(AsConst(x), all, y, workspace_, phases_);
    for (const PackedWeights& weights : all) {
      if (IsReplaced()) AddReplaced(AsConst(x), weights, {y.data + outputs, y.rows, y.stride});
      outputs += weights.outputs();
    }
    for (const AdapterRows& adapter : adapters_) {
      const Rows from = Slice(x, adapter.first, adapter.rows);
      const Rows to = Slice(y, adapter.first, adapter.rows);
      for (const LowRank& delta : adapter.layer->*low_ranks) AddLowRank(from, delta, to);
    }
    return outputs;
  }
  // Adds one LoRA product. The loops in the list own the intermediate buffers.
  void AddLowRank(const Rows& x, const LowRank& delta, const Rows& y) {
    const int64_t rank = delta.a.outputs(), outputs = delta.b.outputs();
    assert(x.rows == y.rows && delta.b.inputs() == rank);
    assert(delta.first_output >= 0 && delta.first_output + outputs <= y.stride);
    const auto inner = std::make_shared<OwnedRows>(x.rows, rank);
    const auto sum = std::make_shared<OwnedRows>(x.rows, outputs);
    AddProduct(AsConst(x), delta.a, inner->view, workspace_, phases_);
    AddProduct(AsConst(inner->view), delta.b, sum->view, workspace_, phases_);
    phases_->AddRows(x.rows, [=, scale = delta.scale, first = delta.first_output](int64_t row) {
      (void)inner;  // the capture keeps the buffer alive
      const FloatMode mode;
      const float* from = sum->view.Row(row);
      float* to = y.Row(row) + first;
      for (int64_t i = 0; i < outputs; ++i) to[i] = to[i] + scale * from[i];
    });
  }
  bool IsReplaced() const { return hooks_ != nullptr && hooks_->product != nullptr; }
  void AddReplaced(const ConstRows& x, const PackedWeights& weights, const Rows& y) {
    phases_->Add(1, [=, &weights, hooks = hooks_, workspace = workspace_](int64_t) {
      hooks->product(x, weights, y, workspace, InThisThread);
    });
  }

  Workspace* const workspace_;
  KernelPhases* const phases_;
  const LayerHooks* const hooks_;
  const absl::Span<const AdapterRows> adapters_;
};

}  // namespace

void AddQueriesKeysValues(const LayerWeights& weights, const LayerRows& rows, Workspace* workspace,
                          KernelPhases* phases, const LayerHooks* hooks) {
  assert(static_cast<int64_t>(rows.tokens.size()) == rows.qkv.rows);
  LayerList list(workspace, phases, hooks, rows.adapters);
  list.Product("product q, k, v", rows.normed, weights.qkv, &AdapterLayer::qkv, rows.qkv);
  phases->AddRows(rows.qkv.rows,
                  [heads = weights.heads, qkv = rows.qkv, tokens = rows.tokens](int64_t row) {
                    NormRotateAppend(heads, tokens[static_cast<size_t>(row)], qkv.Row(row));
                  });
  list.Observe("norm and rotation of q", rows.qkv, weights.heads.heads * weights.heads.head_dim);
}

void AddAttentionAndFeedForward(const LayerWeights& weights, const float* next_norm,
                                const LayerRows& rows, Workspace* workspace, KernelPhases* phases,
                                const LayerHooks* hooks) {
  const int64_t hidden = weights.out->outputs();
  const float epsilon = weights.heads.epsilon;
  LayerList list(workspace, phases, hooks, rows.adapters);
  AddAttend(weights.attend, rows.sequences, AsConst(rows.qkv), rows.attended, workspace, phases);
  list.Observe("attention", rows.attended, weights.out->inputs());
  list.Product("product out", rows.attended, {weights.out, 1}, &AdapterLayer::out, rows.projected);
  list.SumAndNorms("norms after attention", rows, weights.post_attention_norm,
                   weights.pre_feedforward_norm, epsilon, hidden);
  list.GeluProduct("product gate, up with GELU", rows.normed, *weights.gate, *weights.up,
                   rows.gated);
  list.Product("product down", rows.gated, {weights.down, 1}, &AdapterLayer::down, rows.projected);
  list.SumAndNorms("norms after feed-forward", rows, weights.post_feedforward_norm, next_norm,
                   epsilon, hidden);
}

void AddHookedProduct(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                      Workspace* workspace, KernelPhases* phases, const LayerHooks* hooks) {
  LayerList(workspace, phases, hooks).ProductTo(x, weights, y);
}

}  // namespace hearth
