#include "worker/kernels/bf16_product.h"

#include <algorithm>

#include "worker/kernels/fused_tile.h"

namespace hearth {
namespace {

// Gathers the weights of 16 outputs of a panel for inputs [k, k + 16); inputs past the last input
// are zero.
FusedTile TileAt(const PackedWeights& weights, int64_t panel, int64_t output, int64_t k) {
  const auto* from = weights.Panel<BFloat16>(panel);
  FusedTile::Weights tile = {};
  const int64_t count = std::min<int64_t>(kStepInputs, weights.inputs() - k);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t n = 0; n < FusedTile::kOutputs; ++n) {
      tile[n][i] = from[weights.IndexInPanel(panel, k + i, output + n)].bits;
    }
  }
  return FusedTile(tile);
}

}  // namespace

void Bf16PanelOfRows(const PackedRows& x, const PackedWeights& weights, int64_t panel,
                     int64_t first, int64_t end, float* chains) {
  static_assert(PackedWeights::kPanelGrain == FusedTile::kOutputs, "a panel is whole tiles");
  constexpr int64_t kWidth = PackedWeights::kPanelOutputs;
  const int64_t inputs = weights.inputs(), first_row = x.FirstRow(first);
  std::fill_n(chains, (x.FirstRow(end) - first_row) * kWidth, 0.0f);
  for (int64_t output = 0; output < weights.PanelWidth(panel); output += FusedTile::kOutputs) {
    for (int64_t k = 0; k < inputs; k += kStepInputs) {
      const FusedTile of_step = TileAt(weights, panel, output, k);
      const int64_t count = std::min<int64_t>(kStepInputs, inputs - k);
      for (int64_t tile = first; tile < end; ++tile) {
        const int64_t begin = x.FirstRow(tile), rows = x.FirstRow(tile + 1) - begin;
        const float* packed = x.data + begin * inputs + k * rows;  // [input][row of the tile]
        for (int64_t row = 0; row < rows; ++row) {
          uint16_t narrow[kStepInputs] = {};
          for (int64_t i = 0; i < count; ++i) narrow[i] = NarrowOne(packed[i * rows + row]).bits;
          of_step.AddTo(narrow, chains + (begin + row - first_row) * kWidth + output);
        }
      }
    }
  }
}

}  // namespace hearth
