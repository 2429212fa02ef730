// One of Gemma 3's layers for the rows of a step, as loops of one list: from the normed rows to the
// next layer's, and their KV into blocks. In two halves: rows whose outputs nobody wants stop after
// the last layer's first.
//
// Rows may be of several sequences, prefilled and decoded: a row's bits depend on that row, its
// position and its sequence's KV alone.
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

// What a low-rank adapter adds to some outputs of a product: y[first_output + n] += scale * sum
// over j of b[n][j] * (sum over k of a[j][k] * x[k]) (LoRA: Hu et al. 2021, arXiv:2106.09685,
// equation 3). Both sums are Product's, in its written order, then one multiplication and one
// addition for each output: a row's bits depend on that row and the weights alone.
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

// A layer's weights and shapes. Not owned; norms are scales as RmsNorm takes them.
struct LayerWeights {
  absl::Span<const PackedWeights> qkv;  // one, or where types differ several, side by side
  const PackedWeights *out = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
  const float *post_attention_norm = nullptr, *pre_feedforward_norm = nullptr,
              *post_feedforward_norm = nullptr;
  QkvShape heads;
  AttendShape attend;
};

// The rows of a step and the buffers that they go through, as wide as the weights; no two overlap.
// One set serves all layers but for the spans: angles, places and adapters are each layer's own.
struct LayerRows {
  Rows x;       // the residual stream
  Rows normed;  // before: by this layer's input norm; after: by the next layer's
  Rows qkv, attended, gated, projected;
  absl::Span<const QkvToken> tokens;            // one for each row
  absl::Span<const AttendSequence> sequences;   // the rows, in order; their blocks hold the tokens
  absl::Span<const AdapterRows> adapters = {};  // of rows that go through one, in order
};

// Hooks of tests and the self-test in a layer; each may be null.
struct LayerHooks {
  // Takes a product's place. Gate and up are two of them then, not fused.
  std::function<void(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                     Workspace* workspace, ParallelFor parallel)>
      product;
  // Sees what an operation gives when it is done, before the next begins: `columns` of each row.
  std::function<void(const char* operation, const Rows& values, int64_t columns)> observer;
};

// Weights, rows and what their spans show must stay until the list has run, and `hooks` too. The
// first half makes the queries, in rows.qkv, and the KV of all rows; the second is of
// those rows that go on: rows.x, rows.qkv and rows.sequences are of these alone, and rows.tokens is
// not used. `next_norm`: the next layer's input norm, or the final one.
void AddQueriesKeysValues(const LayerWeights& weights, const LayerRows& rows, Workspace* workspace,
                          KernelPhases* phases, const LayerHooks* hooks = nullptr);
void AddAttentionAndFeedForward(const LayerWeights& weights, const float* next_norm,
                                const LayerRows& rows, Workspace* workspace, KernelPhases* phases,
                                const LayerHooks* hooks = nullptr);

// A product of a model as a layer has its own: by the seam, if there is one.
void AddHookedProduct(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                      Workspace* workspace, KernelPhases* phases, const LayerHooks* hooks);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LAYER_H_
