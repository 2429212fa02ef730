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
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "worker/kernels/blocks-inl.h"
#include "worker/kernels/product-inl.h"

#ifndef HEARTH_WORKER_KERNELS_PRODUCT_CALL_
#define HEARTH_WORKER_KERNELS_PRODUCT_CALL_
namespace hearth {

// Maximum tiles of one part, because the sums of all outputs of the part are on the stack.
constexpr int64_t kPartTiles = 32;
// The output matrix of a language model has thousands of panels, and for one row a panel takes two
// microseconds. Therefore a part has several panels; kEnoughParts parts are enough to keep all
// threads busy.
constexpr int64_t kEnoughParts = 256;

struct ProductCall {
  ConstRows x;
  const PackedWeights* weights;
  Rows y;
  absl::Span<float* const> places;  // address of each output row; empty: rows are at y.Row(row)
  Workspace* workspace;
  KernelPhases* phases;
  bool packs = true;  // false if an earlier product in the list packs the same rows

  float* Out(int64_t row) const {
    return places.empty() ? y.Row(row) : places[static_cast<size_t>(row)];
  }
};

}  // namespace hearth
#endif  // HEARTH_WORKER_KERNELS_PRODUCT_CALL_

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS
namespace product {
namespace {

// Inputs of a piece of a panel, if several tiles use the piece: 96 KiB of 16-bit weights. A tile's
// rows for these inputs fit in the L1 cache.
constexpr int64_t kPieceInputs = 1024;
// Inputs of a piece that is widened before use: 24 KiB of floats, or one whole quantized block.
template <typename T>
constexpr int64_t kWidePieceInputs = 0;
template <ElementType kType>
constexpr int64_t kWidePieceInputs<Blocks<kType>> = std::max<int64_t>(128, FormOf(kType).values);
// Number of vectors in a panel of full width.
constexpr int kAll = 3 * kGrainVectors;
// Prefetch distance of weights, in inputs.
constexpr int64_t kAhead = 64;
using D = hn::FixedTag<float, kLanes>;
using V = hn::Vec<D>;

// The work of one tile of rows with one piece of a panel.
struct Tile {
  const float* x;  // [inputs][rows]
  int64_t inputs;
  bool begins;    // true: the sums start at +0; false: the sums continue from `chains`
  float* chains;  // [rows][kWidth]: sums of the outputs
  int64_t width;  // width of the panel: floats from one input's weights to the next input's weights
};

// Adds one input to the sums of all R rows and N vectors of outputs. weight(n): vector n of the
// input's weights; x[r]: the input's value in row r. The smaller of rows and weights is loaded into
// registers once.
template <int R, int N, class Weight>
HWY_INLINE void Step(const float* x, const Weight& weight, V (&sums)[R][N]) {
  if (R < N) {
    V rows[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) rows[r] = hn::Set(D(), x[r]);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const V w = weight(n);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r][n] = hn::MulAdd(rows[r], w, sums[r][n]);
    }
    return;
  }
  V w[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) w[n] = weight(n);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const V row = hn::Set(D(), x[r]);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[r][n] = hn::MulAdd(row, w[n], sums[r][n]);
  }
}

// Prefetches the weights of all outputs of a later input, even if only some outputs are computed
// now, so that memory is read as one stream.
template <typename T>
HWY_INLINE void PrefetchAhead(const T* step, int64_t ahead) {
  constexpr int kLines = static_cast<int>((kWidth * int64_t{sizeof(T)} + 63) / 64);
#pragma GCC unroll 8
  for (int line = 0; line < kLines; ++line) {
    hwy::Prefetch(reinterpret_cast<const char*>(step + ahead) + line * 64);
  }
}

template <bool kPrefetches, int R, int N, typename T>
HWY_INLINE void OneByOne(const float* x, const T* weights, int64_t width, int64_t inputs,
                         V (&sums)[R][N]) {
  for (int64_t k = 0; k < inputs; ++k, weights += width, x += R) {
    if (kPrefetches) PrefetchAhead(weights, kAhead * width);
    Step(
        x, [weights](int n) HWY_ATTR { return Widen(D(), weights + n * kLanes); }, sums);
  }
}

// `at`: index in the panel of the first output that is computed.
template <bool kPrefetches, int R, int N, typename T>
HWY_INLINE void Inputs(const Tile& tile, const T* weights, int64_t at, V (&sums)[R][N]) {
  OneByOne<kPrefetches>(tile.x, weights + at, tile.width, tile.inputs, sums);
}
// Processes bfloat16 inputs in pairs; if the number of inputs is odd, the last input follows.
template <bool kPrefetches, int R, int N>
HWY_INLINE void Inputs(const Tile& tile, const BFloat16* weights, int64_t at, V (&sums)[R][N]) {
  const D d;
  const hn::RebindToUnsigned<D> bits;
  const float* HWY_RESTRICT x = tile.x;
  const BFloat16* pair = weights + 2 * at;
  const int64_t inputs = tile.inputs, width = tile.width;
  uint32_t high = 0xffff0000u;
  for (int64_t k = 0; k + 1 < inputs; k += 2, pair += 2 * width, x += 2 * R) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(pair);
    if (kPrefetches) PrefetchAhead(words, kAhead / 2 * width);
    const auto even = [=](int n) HWY_ATTR {
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::LoadU(bits, words + n * kLanes)));
    };
    Step(x, even, sums);
    // Makes the compiler reload the words and the mask, because registers are scarce and loads are
    // cheap.
    asm volatile("" : "+m"(high) : : "memory");
    const auto odd = [=](int n) HWY_ATTR {
      return hn::BitCast(d, hn::And(hn::LoadU(bits, words + n * kLanes), hn::Set(bits, high)));
    };
    Step(x + R, odd, sums);
  }
  const int64_t done = inputs & ~int64_t{1};
  OneByOne<false>(x, weights + done * width + at, width, inputs - done, sums);
}

template <int R, int N>
struct ToChains {
  // Options of VisitInputs. kIsLong: compile this visitor once for both halves of a byte, which
  // needs free registers. kIsTight: the sums leave no register free.
  static constexpr bool kIsLong = R > 2 && kLanes == 16;
  static constexpr bool kIsTight = R > 5 && kLanes == 8;

  template <class Weight>
  HWY_INLINE void operator()(const Weight& weight) {
    Step(x, weight, sums);
    x += R;
  }
  const float* x;
  V (&sums)[R][N];
};
template <bool kPrefetches, int R, int N, ElementType kType>
HWY_INLINE void Inputs(const Tile& tile, const Blocks<kType>* weights, int64_t at,
                       V (&sums)[R][N]) {
  blocks::VisitInputs<N>(weights, tile.width, tile.inputs, at, kPrefetches && at == 0,
                         ToChains<R, N>{tile.x, sums});
}

template <int N>
struct ToFloats {
  static constexpr bool kIsLong = false, kIsTight = false;

  template <class Weight>
  HWY_INLINE void operator()(const Weight& weight) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) hn::StoreU(weight(n), D(), to + n * kLanes);
    to += width;
  }
  float* to;
  int64_t width;
};
// Widens a piece of quantized weights to [inputs][width], the layout of a float32 panel.
template <typename T>
HWY_NOINLINE void WidenPiece(const T* weights, int64_t width, int64_t inputs, float* to) {
  if (width == kWidth) {
    return blocks::VisitInputs<kAll>(weights, width, inputs, 0, true, ToFloats<kAll>{to, width});
  }
  for (int64_t at = 0; at < width; at += kGrain) {
    blocks::VisitInputs<kGrainVectors>(weights, width, inputs, at, false,
                                       ToFloats<kGrainVectors>{to + at, width});
  }
}

// Computes R rows by N vectors of outputs; all R * N sums are in registers.
template <int R, int N, bool kPrefetches, typename T>
HWY_INLINE void Chains(const Tile& tile, const T* weights, int64_t at) {
  const D d;
  V sums[R][N];
  float* chains = tile.chains + at;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = tile.begins ? hn::Zero(d) : hn::LoadU(d, chains + r * kWidth + n * kLanes);
    }
  }
  Inputs<kPrefetches>(tile, weights, at, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) hn::StoreU(sums[r][n], d, chains + r * kWidth + n * kLanes);
  }
}

// Multiplies one tile by a panel, in as few passes as the registers allow. A panel narrower than
// kWidth is processed kGrain outputs at a time. If such a panel is quantized, the caller has
// converted it to float32 before (WidenPiece).
template <int R, typename T>
HWY_NOINLINE void TileOfPanel(const Tile& tile, const T* weights) {
  // smaller for quantized blocks, because widening needs registers
  constexpr int kRowsOfHalf = kIsBlocks<T> ? 3 : 4;
  constexpr int kWhole = kLanes == 16 || R <= 2 ? kAll
                         : R <= kRowsOfHalf     ? kAll / 2
                                                : kGrainVectors;
  if constexpr (kIsBlocks<T>) {
    for (int64_t at = 0; at < kWidth; at += kWhole * kLanes) {
      Chains<R, kWhole, true>(tile, weights, at);
    }
  } else if (tile.width == kWidth) {
    Chains<R, kWhole, true>(tile, weights, 0);
    for (int64_t at = kWhole * kLanes; at < kWidth; at += kWhole * kLanes) {
      Chains<R, kWhole, false>(tile, weights, at);
    }
  } else {
    for (int64_t at = 0; at < tile.width; at += kGrain) {
      Chains<R, kGrainVectors, false>(tile, weights, at);
    }
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

// Multiplies tiles [first, end) of the rows by one panel. Writes chains[row - first row][kWidth].
template <typename T>
void PanelOfType(const PackedRows& x, const PackedWeights& weights, int64_t panel, int64_t first,
                 int64_t end, float* chains) {
  const int64_t inputs = weights.inputs(), width = weights.PanelWidth(panel);
  const int64_t first_row = x.FirstRow(first), all_rows = x.FirstRow(end) - first_row;
  const bool is_widened = kIsBlocks<T> && (end - first > 1 || width != kWidth);
  const int64_t most = is_widened ? kWidePieceInputs<T> : end - first > 1 ? kPieceInputs : inputs;
  alignas(kKernelAlignBytes) float wide[std::max(kWidePieceInputs<T> * kWidth, int64_t{1})];
  for (int64_t k = 0; k < inputs; k += most) {
    const int64_t count = std::min(most, inputs - k);
    const T* piece = weights.Panel<T>(panel, k);
    if constexpr (kIsBlocks<T>) {
      if (is_widened) WidenPiece(piece, width, count, wide);
    }
    for (int64_t tile = first; tile < end; ++tile) {
      const int64_t row = x.FirstRow(tile), rows = x.FirstRow(tile + 1) - row;
      const Tile work{x.data + row * inputs + k * rows, count, k == 0,
                      chains + (row - first_row) * kWidth, width};
      if (is_widened) {
        TileOf(rows, work, wide);
      } else {
        TileOf(rows, work, piece);
      }
    }
  }
}

}  // namespace

void PanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel, int64_t first,
                 int64_t end, float* chains) {
  if (weights.arithmetic() == Arithmetic::kInt8) {
    return IntegerPanelOfRows(x, weights, panel, first, end, chains);
  }
  if (weights.arithmetic() == Arithmetic::kBFloat16) {
    return Bf16PanelOfRows(x, weights, panel, first, end, chains);
  }
  const auto of = [&](auto element) {
    PanelOfType<decltype(element)>(x, weights, panel, first, end, chains);
  };
  switch (weights.type()) {
    case ElementType::kFloat32:
      return of(float());
    case ElementType::kBFloat16:
      return of(BFloat16());
    case ElementType::kFloat16:
      return of(Float16());
    default:
      return WithBlocks(weights.type(), of);
  }
}

}  // namespace product

void ProductForTarget(const ProductCall& call) {
  const int64_t panels = call.weights->panels();
  const int64_t tiles = product::Packed(call.x, *call.weights, call.workspace).tiles;
  const int64_t part_tiles = product::PartTiles(*call.weights, kPartTiles);
  const int64_t groups = (tiles + part_tiles - 1) / part_tiles;
  const int64_t least = call.x.rows > 1 ? 1 : product::RowPanels(*call.weights);
  const int64_t run = std::clamp(panels * groups / kEnoughParts, least, product::kPartPanelsMax);
  const int64_t runs = (panels + run - 1) / run;
  if (call.packs) product::AddPacking(call.x, *call.weights, call.workspace, call.phases);
  call.phases->Add(runs * groups, [call, panels, tiles, part_tiles, run, runs](int64_t part) {
    const FloatMode mode;
    const PackedWeights& weights = *call.weights;
    const PackedRows x = product::Packed(call.x, weights, call.workspace);
    // Adjacent parts use the same rows, so that the rows stay in the L2 cache.
    const int64_t first = part / runs * part_tiles, end = std::min(first + part_tiles, tiles);
    alignas(kKernelAlignBytes) float chains[kPartTiles * product::kTileRows * product::kWidth];
    const int64_t begin = part % runs * run;
    for (int64_t panel = begin; panel < std::min(begin + run, panels); ++panel) {
      product::PanelOfRows(x, weights, panel, first, end, chains);
      const size_t real_bytes = static_cast<size_t>(weights.PanelReal(panel)) * sizeof(float);
      for (int64_t row = x.FirstRow(first); row < x.FirstRow(end); ++row) {
        std::memcpy(call.Out(row) + panel * product::kWidth,
                    chains + (row - x.FirstRow(first)) * product::kWidth, real_bytes);
      }
    }
  });
}

#else  // targets without vector FMA

void ProductForTarget(const ProductCall& call) {
  const int64_t width = PackedWeights::kPanelOutputs, panels = call.weights->panels();
  call.phases->Add(panels * call.x.rows, [call, width, panels](int64_t part) {
    const FloatMode mode;
    const int64_t row = part / panels, begin = part % panels * width;
    reference::ProductRow(call.x.data + row * call.x.stride, *call.weights, begin,
                          std::min(begin + width, call.weights->outputs()), call.Out(row) + begin);
  });
}

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(ProductForTarget);

void AddProducts(const ConstRows& x, absl::Span<const PackedWeights> all, const Rows& y,
                 Workspace* workspace, KernelPhases* phases) {
  assert(x.rows == y.rows);
  if (x.rows == 0) return;
  int64_t outputs = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool packs = i == 0 || all[i].arithmetic() != all[i - 1].arithmetic();
    HWY_DYNAMIC_DISPATCH(ProductForTarget)
    (ProductCall{x, &all[i], {y.data + outputs, y.rows, y.stride}, {}, workspace, phases, packs});
    outputs += all[i].outputs();
  }
}

void AddProduct(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                Workspace* workspace, KernelPhases* phases) {
  AddProducts(x, {&weights, 1}, y, workspace, phases);
}

void AddProductTo(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                  Workspace* workspace, KernelPhases* phases) {
  assert(x.rows == static_cast<int64_t>(y.size()));
  if (x.rows == 0) return;
  HWY_DYNAMIC_DISPATCH(ProductForTarget)(ProductCall{x, &weights, {}, y, workspace, phases});
}

void Product(const ConstRows& x, const PackedWeights& weights, const Rows& y, Workspace* workspace,
             ParallelFor parallel) {
  KernelPhases phases;
  AddProduct(x, weights, y, workspace, &phases);
  phases.Run(parallel);
}

}  // namespace hearth
#endif  // HWY_ONCE
