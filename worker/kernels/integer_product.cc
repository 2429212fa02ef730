#include "worker/kernels/integer_product.h"

#include <immintrin.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/highway_targets.h"
#include "worker/kernels/quantized/block_places.h"
// Include after highway_targets.h; this header provides the macros for function attributes.
#include <hwy/base.h>

namespace hearth {
namespace {

// A tile of quantized rows is [block of 32 inputs][kBlockWords][rows of the tile], in words of 4
// bytes. The words of a block: eight words of four integers each, the scale d, the sum of the first
// 16 integers, the sum of the last 16 integers.
constexpr int64_t kBlockWords = 11, kScaleWord = 8, kSumsWord = 9;
constexpr int64_t kWidth = PackedWeights::kPanelOutputs, kGrain = PackedWeights::kPanelGrain;
// Prefetch distance of weights, in bytes.
constexpr int64_t kAheadBytes = 6 << 10;
// Inputs of a piece of a panel. If many tiles use a panel, it is unpacked piece by piece.
constexpr int64_t kPieceInputs = 256;
// If at most this many tiles use a panel, each tile unpacks the weights again. With more tiles,
// every tile has at least three rows.
constexpr int64_t kTilesInPanel = 2;

int64_t RowBlocks(int64_t inputs) { return (inputs + 31) / 32; }

const int32_t* TileWords(const PackedRows& x, int64_t tile, int64_t inputs) {
  return reinterpret_cast<const int32_t*>(x.data) +
         x.FirstRow(tile) * RowBlocks(inputs) * kBlockWords;
}

// A piece of a panel, unpacked to one format for all block types. `words`: [word][kWidth], four
// integer weights of an output in each word. For each 32 inputs: `scales` [kWidth] are multipliers;
// `others` [2][kWidth] holds the addends, or for Q6_K the scales of both halves.
struct Piece {
  alignas(kKernelAlignBytes) uint32_t words[kPieceInputs / 4 * kWidth];
  alignas(kKernelAlignBytes) float scales[kPieceInputs / 32 * kWidth];
  alignas(kKernelAlignBytes) float others[kPieceInputs / 16 * kWidth];
};

// The work of one tile of rows with one piece of weights.
struct Tile {
  const int32_t* x;  // the tile's rows, from the piece's first block: [blocks][kBlockWords][rows]
  int64_t blocks;
  bool begins;    // true: the sums start at +0; false: the sums continue from `chains`
  float* chains;  // [rows][kWidth]: sums of the outputs
  int64_t width;  // number of outputs of the panel
};

}  // namespace
}  // namespace hearth

#define HEARTH_INTEGER_KERNEL 0
#include "worker/kernels/integer_product-inl.h"
#undef HEARTH_INTEGER_KERNEL
#define HEARTH_INTEGER_KERNEL 1
#include "worker/kernels/integer_product-inl.h"
#undef HEARTH_INTEGER_KERNEL
#define HEARTH_INTEGER_KERNEL 2
#include "worker/kernels/integer_product-inl.h"
#undef HEARTH_INTEGER_KERNEL

namespace hearth {
namespace {

bool is_forced = false;
IntegerKernel forced_kernel = IntegerKernel::kAvx2;

}  // namespace

const char* IntegerKernelName(IntegerKernel kernel) {
  constexpr const char* kNames[] = {"avx2", "avx_vnni", "avx512_vnni"};
  return kNames[static_cast<int>(kernel)];
}

std::vector<IntegerKernel> UsableIntegerKernels() {
  std::vector<IntegerKernel> usable;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return usable;
  usable.push_back(IntegerKernel::kAvx2);
  if (__builtin_cpu_supports("avxvnni")) usable.push_back(IntegerKernel::kAvxVnni);
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")) {
    usable.push_back(IntegerKernel::kAvx512Vnni);
  }
  return usable;
}

IntegerKernel ChosenIntegerKernel() {
  static const std::vector<IntegerKernel> usable = UsableIntegerKernels();
  return is_forced || usable.empty() ? forced_kernel : usable.back();
}

void ForceIntegerKernel(IntegerKernel kernel) {
  is_forced = true;
  forced_kernel = kernel;
}

int64_t QuantizedRowBytes(int64_t inputs) {
  return RowBlocks(inputs) * kBlockWords * static_cast<int64_t>(sizeof(int32_t));
}

PackedRows QuantizedRows(const ConstRows& x, int64_t inputs, Workspace* workspace) {
  const int64_t words = x.rows * RowBlocks(inputs) * kBlockWords;
  return {workspace->Floats(static_cast<size_t>(words)), x.rows,
          (x.rows + kIntegerTileRows - 1) / kIntegerTileRows};
}

void AddQuantizing(const ConstRows& x, int64_t inputs, Workspace* workspace, KernelPhases* phases) {
  QuantizedRows(x, inputs, workspace);
  phases->AddToRows(x.rows, [x, inputs, workspace](int64_t row) {
    const FloatMode mode;
    const PackedRows packed = QuantizedRows(x, inputs, workspace);
    const int64_t tile = packed.TileOf(row), first = packed.FirstRow(tile);
    int32_t* words = const_cast<int32_t*>(TileWords(packed, tile, inputs)) + row - first;
    avx2_integers::QuantizeRow(x.Row(row), inputs, packed.FirstRow(tile + 1) - first, words);
  });
}

void IntegerPanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel,
                        int64_t first, int64_t end, float* chains) {
  switch (ChosenIntegerKernel()) {
    case IntegerKernel::kAvx2:
      return avx2_integers::PanelOfRows(x, weights, panel, first, end, chains);
    case IntegerKernel::kAvxVnni:
      return avx_vnni_integers::PanelOfRows(x, weights, panel, first, end, chains);
    case IntegerKernel::kAvx512Vnni:
      return avx512_vnni_integers::PanelOfRows(x, weights, panel, first, end, chains);
  }
  assert(false);
}

}  // namespace hearth
