// One layer of Gemma 3 for the rows (tokens) of a step, as loops of one list. Input: the rows,
// normed by this layer's input norm. Output: the rows, normed by the next layer's input norm; the
// keys and values are written to KV blocks. The layer has two halves: in the last layer, rows whose
// logits are not needed stop after the first half.
//
// The rows may belong to several sequences, some in prefill and some in decoding. A row's bits
// depend only on the row, its position and the keys and values of its sequence.
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

// One LoRA matrix pair, added to some outputs of a product: y[first_output + n] += scale * sum over
// j of b[n][j] * (sum over k of a[j][k] * x[k]) (Hu et al. 2021, arXiv:2106.09685, equation 3).
// Both sums are computed by Product, in its order; each output then takes one multiplication and
// one addition. So a row's bits depend only on the row and the weights.
struct LowRank {
  PackedWeights a, b;  // [rank][inputs] and [outputs][rank]
  float scale = 1;
  int64_t first_output = 0;  // index of the product's first output to which this pair is added
};

// The LoRA matrix pairs of one adapter in one layer, by product.
struct AdapterLayer {
  std::vector<LowRank> qkv, out, gate, up, down;
};

// Adjacent rows of a step that use the same adapter, and the adapter's matrices for this layer. The
// memory is not owned.
struct AdapterRows {
  int64_t first = 0, rows = 0;
  const AdapterLayer* layer = nullptr;
};

// The weights and shapes of a layer; the memory is not owned. Each norm is the `scale` of RmsNorm.
struct LayerWeights {
  // one matrix; if q, k and v have different types, several matrices, side by side
  absl::Span<const PackedWeights> qkv;
  const PackedWeights *out = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
  const float *post_attention_norm = nullptr, *pre_feedforward_norm = nullptr,
              *post_feedforward_norm = nullptr;
  QkvShape heads;
  AttendShape attend;
};

// The rows of a step and their buffers. The width of each buffer is that of its weights, and no two
// buffers overlap. All layers use the same buffers; the spans (tokens, sequences, adapters) differ
// in each layer.
struct LayerRows {
  Rows x;  // the residual stream: [rows][hidden]
  // [rows][hidden]; before the layer: x after this layer's input norm; after the layer: x after the
  // next layer's input norm
  Rows normed;
  // Shapes: qkv [rows][(heads + 2 * kv_heads) * head_dim]; attended [rows][heads * head_dim]; gated
  // [rows][intermediate]; projected [rows][hidden].
  Rows qkv, attended, gated, projected;
  absl::Span<const QkvToken> tokens;  // one element for each row
  // the rows by sequence, in order; the KV blocks receive their keys and values
  absl::Span<const AttendSequence> sequences;
  absl::Span<const AdapterRows> adapters = {};  // rows that use a LoRA adapter, in ascending order
};

// Hooks for tests and for the worker's self-test. Each hook may be null.
struct LayerHooks {
  // Replaces every product of the layer. If set, the gate and up products are not fused.
  std::function<void(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                     Workspace* workspace, ParallelFor parallel)>
      product;
  // Called after each operation with its results: the first `columns` columns of each row.
  std::function<void(const char* operation, const Rows& values, int64_t columns)> observer;
};

// AddQueriesKeysValues adds the first half of a layer: it writes the queries to rows.qkv, and the
// keys and values of all rows to their KV blocks. AddAttentionAndFeedForward adds the second half,
// for the rows that continue: rows.x, rows.qkv and rows.sequences must then describe only these
// rows; rows.tokens is unused. `next_norm`: the input norm of the next layer, or the final norm.
// REQUIRES: weights, rows, the memory of their spans, and `hooks` stay valid until the list has
// run.
void AddQueriesKeysValues(const LayerWeights& weights, const LayerRows& rows, Workspace* workspace,
                          KernelPhases* phases, const LayerHooks* hooks = nullptr);
void AddAttentionAndFeedForward(const LayerWeights& weights, const float* next_norm,
                                const LayerRows& rows, Workspace* workspace, KernelPhases* phases,
                                const LayerHooks* hooks = nullptr);

// Adds a product that is not part of a layer, such as the logits. If hooks->product is set, it
// replaces the product.
void AddHookedProduct(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                      Workspace* workspace, KernelPhases* phases, const LayerHooks* hooks);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LAYER_H_
