// The product's tiles: rows of x by one panel of weights, as chains in registers. Private to
// worker/kernels, for the product and what is fused with it; included once for each target, after
// Highway.
//
// Rows are packed by tiles [input][row of the tile], so that a row's value is one broadcast from
// one stream. Weights are widened in registers, from the second-level cache for all tiles but the
// first: a piece of a panel stays there while each tile goes over it. A chain that ends with the
// piece waits in memory, as the float32 that it is, and goes on with the next. Weights in blocks
// take more work to widen: where there are several tiles a piece is widened once for all.
#if defined(HEARTH_WORKER_KERNELS_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_PRODUCT_INL_H_
#undef HEARTH_WORKER_KERNELS_PRODUCT_INL_H_
#else
#define HEARTH_WORKER_KERNELS_PRODUCT_INL_H_
#endif

#include <hwy/cache_control.h>

#include "worker/kernels/base/packed_rows.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/blocks-inl.h"
#include "worker/kernels/packed_weights.h"
#include "worker/kernels/widen-inl.h"

#if HEARTH_KERNELS_VECTORS
HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {
namespace product {

// As many rows of accumulators, beside the weights, as there are registers for.
constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 6;
constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr int kGrainVectors = static_cast<int>(PackedWeights::kPanelGrain) / kLanes;
constexpr int64_t kWidth = PackedWeights::kPanelOutputs, kGrain = PackedWeights::kPanelGrain;
// Inputs of a piece, where there are several tiles: 96 KiB of a panel in 16 bits, and so much of a
// tile's rows as a first-level cache has.
constexpr int64_t kPieceInputs = 1024;
// Of one that is widened: 24 KiB of floats, or a whole block.
template <typename T>
constexpr int64_t kWidePieceInputs = 0;
template <ElementType kType>
constexpr int64_t kWidePieceInputs<blocks::Blocks<kType>> = std::max<int64_t>(128,
                                                                              FormOf(kType).values);
// Inputs between a weight's prefetch and its use.
constexpr int64_t kAhead = 64;
using D = hn::FixedTag<float, kLanes>;
using V = hn::Vec<D>;

// body(T()), with the element of a type.
template <class Body>
void WithElement(ElementType type, const Body& body) {
  switch (type) {
    case ElementType::kFloat32:
      return body(float());
    case ElementType::kBFloat16:
      return body(BFloat16());
    case ElementType::kFloat16:
      return body(Float16());
    case ElementType::kQ8_0:
      return body(blocks::Blocks<ElementType::kQ8_0>());
    case ElementType::kQ4_0:
      return body(blocks::Blocks<ElementType::kQ4_0>());
    case ElementType::kQ4_1:
      return body(blocks::Blocks<ElementType::kQ4_1>());
    case ElementType::kQ5_0:
      return body(blocks::Blocks<ElementType::kQ5_0>());
    case ElementType::kQ5_1:
      return body(blocks::Blocks<ElementType::kQ5_1>());
    case ElementType::kQ4_K:
      return body(blocks::Blocks<ElementType::kQ4_K>());
    case ElementType::kQ5_K:
      return body(blocks::Blocks<ElementType::kQ5_K>());
    case ElementType::kQ6_K:
      return body(blocks::Blocks<ElementType::kQ6_K>());
  }
  assert(false);
}

// The work of one tile of rows on one panel's piece of inputs.
struct Tile {
  const float* x;  // [inputs][rows]
  int64_t inputs;
  bool begins;    // its chains, at +0; else they go on from `chains`
  float* chains;  // [rows][kWidth]
  int64_t width;  // of the panel: from one input's weights to the next
};

// One input: its weights' vectors, weight(n), and each row's value. The smaller set is kept in
// registers, the other passes through them.
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

// All of a later step's weights, also where only a grain of them is computed now: memory is read in
// one stream.
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

// `at`: the first of the panel's outputs that are computed.
template <bool kPrefetches, int R, int N, typename T>
HWY_INLINE void Inputs(const Tile& tile, const T* weights, int64_t at, V (&sums)[R][N]) {
  OneByOne<kPrefetches>(tile.x, weights + at, tile.width, tile.inputs, sums);
}
// Inputs in pairs, and the odd one.
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
    // Words and mask are loaded again: registers are few, and loads are not.
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
  template <class Weight>
  HWY_INLINE void operator()(const Weight& weight) {
    Step(x, weight, sums);
    x += R;
  }
  const float* x;
  V (&sums)[R][N];
};
template <bool kPrefetches, int R, int N, ElementType kType>
HWY_INLINE void Inputs(const Tile& tile, const blocks::Blocks<kType>* weights, int64_t at,
                       V (&sums)[R][N]) {
  blocks::VisitInputs<kPrefetches, N>(weights, tile.width, tile.inputs, at,
                                      ToChains<R, N>{tile.x, sums});
}

template <int N>
struct ToFloats {
  template <class Weight>
  HWY_INLINE void operator()(const Weight& weight) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) hn::StoreU(weight(n), D(), to + n * kLanes);
    to += width;
  }
  float* to;
  int64_t width;
};
// [inputs][width], as a panel of float32 has them.
template <typename T>
HWY_NOINLINE void WidenPiece(const T* weights, int64_t width, int64_t inputs, float* to) {
  constexpr int kAll = 3 * kGrainVectors;
  if (width == kWidth) {
    return blocks::VisitInputs<true, kAll>(weights, width, inputs, 0, ToFloats<kAll>{to, width});
  }
  for (int64_t at = 0; at < width; at += kGrain) {
    blocks::VisitInputs<false, kGrainVectors>(weights, width, inputs, at,
                                              ToFloats<kGrainVectors>{to + at, width});
  }
}

// R rows by N vectors of outputs: R * N chains, in registers.
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

// A panel, in as few goes as the registers allow; a narrow one grain by grain.
template <int R, typename T>
HWY_NOINLINE void TileOfPanel(const Tile& tile, const T* weights) {
  constexpr int kAll = 3 * kGrainVectors;
  constexpr int kWhole = kLanes == 16 || R <= 2 ? kAll : R <= 4 ? kAll / 2 : kGrainVectors;
  if (tile.width == kWidth) {
    Chains<R, kWhole, true>(tile, weights, 0);
    for (int64_t at = kWhole * kLanes; at < kWidth; at += kWhole * kLanes) {
      Chains<R, kWhole, false>(tile, weights, at);
    }
    return;
  }
  for (int64_t at = 0; at < tile.width; at += kGrain) {
    Chains<R, kGrainVectors, false>(tile, weights, at);
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

// Tiles [first, end) of the rows by one panel: chains[row - first row][kWidth].
template <typename T>
void PanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel, int64_t first,
                 int64_t end, float* chains) {
  const int64_t inputs = weights.inputs(), width = weights.PanelWidth(panel);
  const bool is_widened = blocks::kIn<T> && end - first > 1;
  const int64_t most = is_widened ? kWidePieceInputs<T> : end - first > 1 ? kPieceInputs : inputs;
  alignas(kKernelAlignBytes) float wide[std::max(kWidePieceInputs<T> * kWidth, int64_t{1})];
  for (int64_t k = 0; k < inputs; k += most) {
    const int64_t count = std::min(most, inputs - k);
    const T* piece = weights.Panel<T>(panel, k);
    if constexpr (blocks::kIn<T>) {
      if (is_widened) WidenPiece(piece, width, count, wide);
    }
    for (int64_t tile = first; tile < end; ++tile) {
      const int64_t row = x.FirstRow(tile), rows = x.FirstRow(tile + 1) - row;
      const Tile work{x.data + row * inputs + k * rows, count, k == 0,
                      chains + (row - x.FirstRow(first)) * kWidth, width};
      if (is_widened) {
        TileOf(rows, work, wide);
      } else {
        TileOf(rows, work, piece);
      }
    }
  }
}

// Four rows by four inputs, from rows to columns.
HWY_INLINE void PackFour(const float* const* rows, int64_t k, int64_t stride, float* out) {
  const hn::FixedTag<float, 4> d;
  const auto a = hn::LoadU(d, rows[0] + k), b = hn::LoadU(d, rows[1] + k);
  const auto c = hn::LoadU(d, rows[2] + k), e = hn::LoadU(d, rows[3] + k);
  const auto even = hn::InterleaveLower(d, a, c), odd = hn::InterleaveLower(d, b, e);
  const auto even_high = hn::InterleaveUpper(d, a, c), odd_high = hn::InterleaveUpper(d, b, e);
  hn::StoreU(hn::InterleaveLower(d, even, odd), d, out);
  hn::StoreU(hn::InterleaveUpper(d, even, odd), d, out + stride);
  hn::StoreU(hn::InterleaveLower(d, even_high, odd_high), d, out + 2 * stride);
  hn::StoreU(hn::InterleaveUpper(d, even_high, odd_high), d, out + 3 * stride);
}

// Packs one tile of rows.
inline void PackTile(const ConstRows& x, int64_t first, int64_t rows, int64_t inputs, float* out) {
  constexpr int64_t kRun = 64;  // inputs whose rows stay in the first-level cache
  for (int64_t run = 0; run < inputs; run += kRun) {
    const int64_t end = std::min(run + kRun, inputs), fours_end = run + (end - run) / 4 * 4;
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const float* from[4];
      for (int64_t i = 0; i < 4; ++i) from[i] = x.Row(first + r + i);
      for (int64_t k = run; k < fours_end; k += 4) PackFour(from, k, rows, out + k * rows + r);
      for (int64_t k = fours_end; k < end; ++k) {
        for (int64_t i = 0; i < 4; ++i) out[k * rows + r + i] = from[i][k];
      }
    }
    for (; r < rows; ++r) {
      const float* from = x.Row(first + r);
      for (int64_t k = run; k < end; ++k) out[k * rows + r] = from[k];
    }
  }
}

// Tiles of one part, at most `most`: as many as a second-level cache has room for beside a piece of
// a panel, and enough that the panel need not come from memory for each of them.
inline int64_t PartTiles(int64_t inputs, int64_t most) {
  constexpr int64_t kRowBytes = 512 << 10, kLeast = 4;
  const int64_t tile_bytes = inputs * kTileRows * static_cast<int64_t>(sizeof(float));
  return std::min(most, std::max(kLeast, kRowBytes / tile_bytes));
}

inline int64_t Tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Rows as tiles, where AddPacking's loop puts them; a single row is one already.
inline PackedRows Packed(const ConstRows& x, int64_t inputs, Workspace* workspace) {
  if (x.rows == 1) return {x.data, 1, 1};
  return {workspace->Floats(static_cast<size_t>(x.rows * inputs)), x.rows, Tiles(x.rows)};
}

// The workspace has its room at once: the loops do not change it.
inline void AddPacking(const ConstRows& x, int64_t inputs, Workspace* workspace,
                       KernelPhases* phases) {
  // One part has so much that packing it is not over before another thread would have taken it.
  constexpr int64_t kPartFloats = 1 << 14;
  if (x.rows == 1) return;
  Packed(x, inputs, workspace);
  const int64_t tiles = Tiles(x.rows), all = x.rows * inputs;
  const int64_t parts = std::min(tiles, (all + kPartFloats - 1) / kPartFloats);
  phases->Add(parts, [x, inputs, workspace, tiles, parts](int64_t part) {
    const PackedRows packed = Packed(x, inputs, workspace);
    for (int64_t tile = part * tiles / parts; tile < (part + 1) * tiles / parts; ++tile) {
      const int64_t first = packed.FirstRow(tile);
      PackTile(x, first, packed.FirstRow(tile + 1) - first, inputs,
               const_cast<float*>(packed.data) + first * inputs);
    }
  });
}

}  // namespace product
}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();
#endif  // HEARTH_KERNELS_VECTORS

#endif  // HEARTH_WORKER_KERNELS_PRODUCT_INL_H_
