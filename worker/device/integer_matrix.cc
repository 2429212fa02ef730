#include "worker/device/integer_matrix.h"

#include <cassert>
#include <cstring>

#include "worker/kernels/packed_weights.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {

IntegerForm FormFor(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:
    case ElementType::kQ5_0:
      return IntegerForm::kInt8;
    case ElementType::kQ4_0:
      return IntegerForm::kInt4;
    case ElementType::kQ4_1:
    case ElementType::kQ4_K:
      return IntegerForm::kInt4Least;
    default:
      assert(IsOfBlocks(type));
      return IntegerForm::kInt8Parts;
  }
}

void PackIntegers(const PackedWeights& weights, int output, IntegerForm form, int column,
                  unsigned char* packed) {
  const ElementType type = weights.type();
  const IntegerTile tile = TileOf(form);
  const int inputs = static_cast<int>(weights.inputs()), blocks = IntegerBlocks(inputs);
  const int values = static_cast<int>(FormOf(type).values), in_tile = column % tile.kColumns;
  std::byte block[PackedWeights::kMaxBlockBytes];
  for (int k = 0; k < inputs; k += tile.kInputs) {
    if (k % values == 0) weights.GatherBlock(output, k, block);
    const BlockRun run = RunOf(type, block, k % values / tile.kInputs);
    unsigned char* const to =
        packed + (static_cast<size_t>(column / tile.kColumns) * static_cast<size_t>(blocks) +
                  static_cast<size_t>(k / tile.kInputs)) *
                     static_cast<size_t>(tile.bytes);
    for (int i = 0; i < tile.kInputs; ++i) {
      const IntegerPlace place = PlaceInTile(tile.is_narrow, in_tile, i);
      const int bits = run.q[i] - run.zero;
      to[place.byte] = static_cast<unsigned char>(
          !tile.is_narrow ? bits
                          : to[place.byte] | (place.is_lower ? bits & 15 : (bits & 15) << 4));
    }
    if (!tile.has_least) {  // d is the block's own float16
      std::memcpy(to + tile.scales + 2 * in_tile, block + HalvesOf(type).at, 2);
      continue;
    }
    std::memcpy(to + tile.scales + 4 * in_tile, &run.d, sizeof run.d);
    std::memcpy(to + tile.leasts + 4 * in_tile, &run.m, sizeof run.m);
    for (int half = 0; half < 2 && tile.has_parts; ++half) {
      to[tile.parts + 2 * in_tile + half] = static_cast<unsigned char>(run.part[half]);
    }
  }
}

}  // namespace hearth
