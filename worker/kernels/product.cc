// How the product goes: rows are packed by tiles [k][rows of the tile], so that a row's value is
// one broadcast from one stream. Few rows (one tile): each panel is read once, widened in
// registers, with one chain of FMAs for each output and row. Many rows: a block of a panel is
// widened once into the first-level cache, and each tile goes over it; a chain that ends with the
// block waits in memory, as the float32 that it is, and goes on with the next.
#include "worker/kernels/product.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/highway_targets.h"
#include "worker/kernels/reference.h"

// Highway compiles this file once for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "worker/kernels/widen-inl.h"

#ifndef HEARTH_WORKER_KERNELS_PRODUCT_CALL_
#define HEARTH_WORKER_KERNELS_PRODUCT_CALL_
namespace hearth {

// Inputs of a panel that are widened at a time: 24 KiB, most of a first-level cache.
constexpr int64_t kBlockInputs = 128;
// Rows that one part computes: enough that a panel is widened for less than 1 % of the time, and
// few enough that their tiles stay in a second-level cache.
constexpr int64_t kPartRows = 256;

struct ProductCall {
  ConstRows x;
  const PackedWeights* weights;
  Rows y;
  Workspace* workspace;
  ParallelFor parallel;
};

}  // namespace hearth
#endif  // HEARTH_WORKER_KERNELS_PRODUCT_CALL_

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS
namespace {

// As many rows of accumulators, beside the weights, as there are registers for.
constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 6;
constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr int kGrainVectors = static_cast<int>(PackedWeights::kPanelGrain) / kLanes;
constexpr int64_t kWidth = PackedWeights::kPanelOutputs, kGrain = PackedWeights::kPanelGrain;
using D = hn::FixedTag<float, kLanes>;
using V = hn::Vec<D>;

// What one tile of rows computes of one panel.
struct Tile {
  const float* x;  // [inputs][rows]
  int64_t inputs;
  const float* begin;  // of the chains, null: +0
  float* end;
  int64_t begin_stride, end_stride;
  int64_t width;  // of the panel: from one input's weights to the next
};

// R rows by N vectors of outputs: R * N chains, in registers.
template <int R, int N, typename T>
HWY_INLINE void Chains(const Tile& tile, const T* HWY_RESTRICT weights, int64_t at) {
  const D d;
  V sums[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = tile.begin != nullptr
                       ? hn::LoadU(d, tile.begin + r * tile.begin_stride + at + n * kLanes)
                       : hn::Zero(d);
    }
  }
  const float* HWY_RESTRICT x = tile.x;
  weights += at;
  for (int64_t k = 0; k < tile.inputs; ++k) {
    V w[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) w[n] = Widen(d, weights + n * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V row = hn::Set(d, x[r]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] = hn::MulAdd(row, w[n], sums[r][n]);
    }
    weights += tile.width;
    x += R;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      hn::StoreU(sums[r][n], d, tile.end + r * tile.end_stride + at + n * kLanes);
    }
  }
}

// A panel: in one go where the registers hold its chains, else grain by grain.
template <int R, typename T>
HWY_NOINLINE void TileOfPanel(const Tile& tile, const T* weights) {
  constexpr bool kWhole = R * 3 * kGrainVectors + 3 * kGrainVectors <= (kLanes == 16 ? 30 : 18);
  int64_t at = 0;
  if (kWhole && tile.width == kWidth) {
    Chains<R, 3 * kGrainVectors>(tile, weights, 0);
    return;
  }
  for (; at < tile.width; at += kGrain) {
    Chains<R, kGrainVectors>(tile, weights, at);
  }
}

template <typename T>
void TileOf(int64_t rows, const Tile& tile, const T* weights) {
  switch (rows) {
    case 1:
      return TileOfPanel<1>(tile, weights);
    case 2:
      return TileOfPanel<2>(tile, weights);
    case 3:
      return TileOfPanel<3>(tile, weights);
    case 4:
      return TileOfPanel<4>(tile, weights);
    case 5:
      return TileOfPanel<5>(tile, weights);
    case 6:
      return TileOfPanel<6>(tile, weights);
#if HWY_TARGET == HWY_AVX3
    case 7:
      return TileOfPanel<7>(tile, weights);
    case 8:
      return TileOfPanel<8>(tile, weights);
#endif
  }
  assert(false);
}

// Packs a tile's rows: [inputs][rows].
void PackTile(const ConstRows& x, int64_t first, int64_t rows, int64_t inputs, float* out) {
  constexpr int64_t kRun = 64;  // inputs whose rows stay in the first-level cache
  for (int64_t run = 0; run < inputs; run += kRun) {
    const int64_t end = std::min(run + kRun, inputs);
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = x.Row(first + r);
      for (int64_t k = run; k < end; ++k) out[k * rows + r] = from[k];
    }
  }
}

// The tile's chains end in y, in rows from `row` on of a panel's outputs. Where the panel has less
// real outputs than its width, they end beside y first.
template <typename T>
void EndInOutput(const ProductCall& call, int64_t panel, int64_t row, int64_t rows, Tile tile,
                 const T* weights) {
  const int64_t real = call.weights->PanelReal(panel);
  float* y = call.y.Row(row) + panel * kWidth;
  if (real == tile.width) {
    tile.end = y;
    tile.end_stride = call.y.stride;
    return TileOf(rows, tile, weights);
  }
  float aside[kTileRows * kWidth];
  tile.end = aside;
  tile.end_stride = kWidth;
  TileOf(rows, tile, weights);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(y + r * call.y.stride, aside + r * kWidth,
                static_cast<size_t>(real) * sizeof(float));
  }
}

// One tile of rows, one panel, all inputs.
template <typename T>
void FewRows(const ProductCall& call, const float* packed, int64_t panel) {
  Tile tile{};
  tile.x = packed;
  tile.inputs = call.weights->inputs();
  tile.width = call.weights->PanelWidth(panel);
  EndInOutput(call, panel, 0, call.x.rows, tile, call.weights->Panel<T>(panel));
}

template <typename T>
const float* WidenBlock(const T* from, int64_t count, float* to) {
  const D d;
  for (int64_t i = 0; i < count; i += kLanes) hn::Store(Widen(d, from + i), d, to + i);
  return to;
}
const float* WidenBlock(const float* from, int64_t, float*) { return from; }

// Rows [first, end) of one panel, block by block. Between blocks the chains wait side by side: in y
// they would lie a power of two apart, and push each other out of a cache.
template <typename T>
void ManyRows(const ProductCall& call, const float* packed, int64_t panel, int64_t first,
              int64_t end) {
  const PackedWeights& weights = *call.weights;
  const int64_t inputs = weights.inputs();
  alignas(kKernelAlignBytes) float block[kBlockInputs * kWidth];
  alignas(kKernelAlignBytes) float waiting[kPartRows * kWidth];
  Tile tile{};
  tile.width = weights.PanelWidth(panel);
  tile.begin_stride = tile.end_stride = kWidth;
  for (int64_t k = 0; k < inputs; k += kBlockInputs) {
    tile.inputs = std::min(kBlockInputs, inputs - k);
    const float* wide =
        WidenBlock(weights.Panel<T>(panel) + k * tile.width, tile.inputs * tile.width, block);
    for (int64_t row = first; row < end; row += kTileRows) {
      const int64_t rows = std::min(kTileRows, end - row);
      tile.x = packed + row * inputs + k * rows;
      float* chains = waiting + (row - first) * kWidth;
      tile.begin = k > 0 ? chains : nullptr;
      if (k + tile.inputs == inputs) {
        EndInOutput(call, panel, row, rows, tile, wide);
      } else {
        tile.end = chains;
        TileOf(rows, tile, wide);
      }
    }
  }
}

template <typename T>
void ProductOf(const ProductCall& call) {
  const int64_t rows = call.x.rows, inputs = call.weights->inputs();
  const int64_t panels = call.weights->panels();
  float* packed = rows == 1 ? nullptr : call.workspace->Floats(static_cast<size_t>(rows * inputs));
  if (rows <= kTileRows) {
    if (rows > 1) PackTile(call.x, 0, rows, inputs, packed);
    const float* x = rows == 1 ? call.x.data : packed;
    call.parallel(panels, [&](int64_t panel) {
      const FloatMode mode;
      FewRows<T>(call, x, panel);
    });
    return;
  }
  call.parallel((rows + kTileRows - 1) / kTileRows, [&](int64_t tile) {
    const int64_t first = tile * kTileRows;
    PackTile(call.x, first, std::min(kTileRows, rows - first), inputs, packed + first * inputs);
  });
  constexpr int64_t kRows = kPartRows / kTileRows * kTileRows;
  call.parallel(panels * ((rows + kRows - 1) / kRows), [&](int64_t part) {
    const FloatMode mode;
    const int64_t first = part / panels * kRows;
    ManyRows<T>(call, packed, part % panels, first, std::min(rows, first + kRows));
  });
}

}  // namespace

void ProductForTarget(const ProductCall& call) {
  switch (call.weights->type()) {
    case ElementType::kFloat32:
      return ProductOf<float>(call);
    case ElementType::kBFloat16:
      return ProductOf<BFloat16>(call);
    case ElementType::kFloat16:
      return ProductOf<Float16>(call);
  }
}

#else  // no FMA in vectors

void ProductForTarget(const ProductCall& call) {
  const int64_t width = PackedWeights::kPanelOutputs, panels = call.weights->panels();
  call.parallel(panels * call.x.rows, [&](int64_t part) {
    const FloatMode mode;
    const int64_t row = part / panels, begin = part % panels * width;
    reference::ProductRow(call.x.data + row * call.x.stride, *call.weights, begin,
                          std::min(begin + width, call.weights->outputs()),
                          call.y.data + row * call.y.stride + begin);
  });
}

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(ProductForTarget);

void Product(const ConstRows& x, const PackedWeights& weights, const Rows& y, Workspace* workspace,
             ParallelFor parallel) {
  assert(x.rows == y.rows);
  if (x.rows == 0) return;
  HWY_DYNAMIC_DISPATCH(ProductForTarget)(ProductCall{x, &weights, y, workspace, parallel});
}

}  // namespace hearth
#endif  // HWY_ONCE
