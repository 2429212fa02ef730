// Shared by the product kernel and the kernels that are fused with it: packs rows into tiles, and
// multiplies tiles by a panel of weights. Private to worker/kernels; included once for each target,
// after Highway.
//
// A packed tile is [input][row of the tile], so that the values of all its rows are read as one
// stream.
#if defined(HEARTH_WORKER_KERNELS_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_PRODUCT_INL_H_
#undef HEARTH_WORKER_KERNELS_PRODUCT_INL_H_
#else
#define HEARTH_WORKER_KERNELS_PRODUCT_INL_H_
#endif

#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"
#include "worker/kernels/bf16_product.h"
#include "worker/kernels/integer_product.h"
#include "worker/kernels/packed_weights.h"
#include "worker/kernels/widen-inl.h"

#if HEARTH_KERNELS_VECTORS
HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {
namespace product {

// Maximum rows of a tile; with the weights, the tile's accumulators fill the vector registers.
constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 6;
constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr int kGrainVectors = static_cast<int>(PackedWeights::kPanelGrain) / kLanes;
constexpr int64_t kWidth = PackedWeights::kPanelOutputs, kGrain = PackedWeights::kPanelGrain;

// Multiplies tiles [first, end) of the rows by one panel of weights of any type. Writes chains[row
// - first row][kWidth]. Defined in product.cc.
void PanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel, int64_t first,
                 int64_t end, float* chains);

// Transposes four inputs of four rows (4 x 4 floats).
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

// Packs the rows of one tile to [inputs][rows].
inline void PackTile(const ConstRows& x, int64_t first, int64_t rows, int64_t inputs, float* out) {
  constexpr int64_t kRun = 64;  // inputs of a run; the run of all rows fits in the L1 cache
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

// Returns the number of tiles of one part, at most `most` tiles of kTileRows rows. The tiles fit in
// the L2 cache together with a piece of a panel, and there are enough tiles that a panel is not
// read from memory again for each tile.
inline int64_t PartTiles(const PackedWeights& weights, int64_t most) {
  constexpr int64_t kRowBytes = 512 << 10, kLeast = 4;
  if (weights.arithmetic() == Arithmetic::kInt8) {
    const int64_t tile_bytes = kIntegerTileRows * QuantizedRowBytes(weights.inputs());
    return std::min(most * kTileRows / kIntegerTileRows, std::max(kLeast, kRowBytes / tile_bytes));
  }
  const int64_t tile_bytes = weights.inputs() * kTileRows * static_cast<int64_t>(sizeof(float));
  return std::min(most, std::max(kLeast, kRowBytes / tile_bytes));
}

// Maximum panels of one part.
constexpr int64_t kPartPanelsMax = 8;

// Returns the number of panels of one part for a product with one row. A part reads at least
// kPartBytes as one stream, because smaller reads are half as fast.
inline int64_t RowPanels(const PackedWeights& weights) {
  constexpr int64_t kPartBytes = 64 << 10;
  const auto bytes = static_cast<int64_t>(weights.bytes());
  return std::clamp((kPartBytes * weights.panels() + bytes / 2) / bytes, int64_t{1},
                    kPartPanelsMax);
}

// Returns the packed tiles; the loop of AddPacking fills them. A single row of floats needs no
// packing: the row itself is the tile.
inline PackedRows Packed(const ConstRows& x, const PackedWeights& weights, Workspace* workspace) {
  const int64_t inputs = weights.inputs();
  if (weights.arithmetic() == Arithmetic::kInt8) return QuantizedRows(x, inputs, workspace);
  if (x.rows == 1) return {x.data, 1, 1};
  return {workspace->Floats(static_cast<size_t>(x.rows * inputs)), x.rows,
          (x.rows + kTileRows - 1) / kTileRows};
}

// Adds the loop that packs the rows to `phases`. Allocates its buffer in `workspace` immediately,
// because the loops must not reallocate the workspace.
inline void AddPacking(const ConstRows& x, const PackedWeights& weights, Workspace* workspace,
                       KernelPhases* phases) {
  // Minimum floats that one part packs; smaller parts would end before another thread could start.
  constexpr int64_t kPartFloats = 1 << 14;
  const int64_t inputs = weights.inputs();
  if (weights.arithmetic() == Arithmetic::kInt8) {
    return AddQuantizing(x, inputs, workspace, phases);
  }
  if (x.rows == 1) return;
  const int64_t tiles = Packed(x, weights, workspace).tiles, all = x.rows * inputs;
  const int64_t parts = std::min(tiles, (all + kPartFloats - 1) / kPartFloats);
  phases->Add(parts, [x, &weights, inputs, workspace, tiles, parts](int64_t part) {
    const PackedRows packed = Packed(x, weights, workspace);
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
