// One layer of Gemma 3 for the rows of a step, as loops of one list: from this layer's normed rows
// to the next layer's, with the rows' keys and values written to blocks. The layer has two halves:
// in the last layer, rows whose outputs are not wanted stop after the first half.
//
// The rows may belong to several sequences, in prefill and decoding. A row's bits depend only on
// the row, its position and the keys and values of its sequence.
#ifndef HEARTH_WORKER_KERNELS_LAYER_H_
#define HEARTH_WORKER_KERNELS_LAYER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "worker/kernels/attend.h"
#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/packed_weights.h"
#include "worker/kernels/row_kernels.h"

namespace hearth {

// The addition of a low-rank adapter to some outputs of a product: y[first_output + n] += scale *
// sum over j of b[n][j] * (sum over k of a[j][k] * x[k]) (LoRA: Hu et al. 2021, arXiv:2106.09685,
// equation 3). Both sums are Products, in Product's written order, followed by one multiplication
// and one addition for each output. So a row's bits depend only on the row and the weights.
struct LowRank {
  PackedWeights a, b;  // [rank][inputs] and [outputs][rank]
  float scale = 1;
  int64_t first_output = 0;  // the first output that it is added to
};

// The additions of one adapter in one layer, by product.
struct AdapterLayer {
  std::vector<LowRank> qkv, out, gate, up, down;
};

// Adjacent rows of a step that use the same adapter, in one layer. Not owned.
struct AdapterRows {
  int64_t first = 0, rows = 0;
  const AdapterLayer* layer = nullptr;
};

// The weights and shapes of a layer. Not owned. Norms are scales as RmsNorm takes them.
struct LayerWeights {
  absl::Span<const PackedWeights> qkv;  // one matrix; several, side by side, if their types differ
  const PackedWeights *out = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
  const float *post_attention_norm = nullptr, *pre_feedforward_norm = nullptr,
              *post_feedforward_norm = nullptr;
  QkvShape heads;
  AttendShape attend;
};

// The rows of a step and their buffers; each buffer has the width of its weights, and no two
// buffers overlap. All layers use the same buffers; the spans (angles, places, adapters) are
// different in each layer.
struct LayerRows {
  Rows x;       // the residual stream: [rows][hidden]
  Rows normed;  // [rows][hidden], normed by this layer's input norm; after the layer, by the next
                // layer's
  // [rows][(heads + 2 * kv_heads) * head_dim], [rows][heads * head_dim], [rows][intermediate] and
  // [rows][hidden].
  Rows qkv, attended, gated, projected;
  absl::Span<const QkvToken> tokens;            // one token for each row
  absl::Span<const AttendSequence> sequences;   // the rows, in order; their blocks hold the tokens
  absl::Span<const AdapterRows> adapters = {};  // rows that use an adapter, in order
};

// Hooks of tests and of the self-test in a layer; each may be null.
struct LayerHooks {
  // Replaces a product. Gate and up are then two products, not fused.
  std::function<void(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                     Workspace* workspace, ParallelFor parallel)>
      product;
  // Receives the results of an operation before the next operation begins: `columns` of each row.
  std::function<void(const char* operation, const Rows& values, int64_t columns)> observer;
};

// AddQueriesKeysValues adds the first half of a layer: it computes the queries in rows.qkv, and the
// keys and values of all rows. AddAttentionAndFeedForward adds the second half, for the rows that
// continue: rows.x, rows.qkv and rows.sequences then describe only these rows, and rows.tokens is
// unused. `next_norm`: the input norm of the next layer, or the final norm. REQUIRES: weights,
// rows, the memory of their spans, and `hooks` stay valid until the list has run.
void AddQueriesKeysValues(const LayerWeights& weights, const LayerRows& rows, Workspace* workspace,
                          KernelPhases* phases, const LayerHooks* hooks = nullptr);
void AddAttentionAndFeedForward(const LayerWeights& weights, const float* next_norm,
                                const LayerRows& rows, Workspace* workspace, KernelPhases* phases,
                                const LayerHooks* hooks = nullptr);

// Adds a product of the model outside its layers; uses the hook `product` if it is set.
void AddHookedProduct(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                      Workspace* workspace, KernelPhases* phases, const LayerHooks* hooks);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LAYER_H_
