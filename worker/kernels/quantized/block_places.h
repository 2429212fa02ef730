// Describes where the bits of quantized weights are in a packed panel (packed_weights.h). Private
// to worker/kernels.
#ifndef HEARTH_WORKER_KERNELS_QUANTIZED_BLOCK_PLACES_H_
#define HEARTH_WORKER_KERNELS_QUANTIZED_BLOCK_PLACES_H_

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "worker/kernels/base/element.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {

// Constants of a block type. The struct is the element type of a panel of such blocks: one byte.
template <ElementType kOfType>
struct Blocks {
  static constexpr ElementType kType = kOfType;
  static constexpr int64_t kValues = FormOf(kType).values;
  static constexpr int64_t kBytes = static_cast<int64_t>(FormOf(kType).bytes);
  static constexpr int64_t kHalves = HalvesOf(kType).count;
  static constexpr bool kIsK = kValues == 256, kHasLeast = kHalves == 2;
  static constexpr int kBits =
      kType == ElementType::kQ8_0   ? 8
      : kType == ElementType::kQ6_K ? 6
      : kType == ElementType::kQ5_0 || kType == ElementType::kQ5_1 || kType == ElementType::kQ5_K
          ? 5
          : 4;
  // Number that is subtracted from each q if the type has no least value. kZero * scale is exact.
  static constexpr int kZero = kHasLeast || kBits == 8 ? 0 : 1 << (kBits - 1);
  static constexpr bool kAdds = kHasLeast || kZero != 0;
  // Inputs of a run. The inputs of a run share one scale; their low bits are in adjacent rows of
  // bytes, in the same half of each byte.
  static constexpr int64_t kRunInputs = kBits == 8 || (kIsK && kHasLeast) ? 32 : 16;
  static constexpr int64_t kRuns = kValues / kRunInputs;

  std::byte byte;
};
template <typename T>
constexpr bool kIsBlocks = false;
template <ElementType kType>
constexpr bool kIsBlocks<Blocks<kType>> = true;

// Calls of(Blocks<type>()). REQUIRES: `type` is a block type.
template <class F>
void WithBlocks(ElementType type, const F& of) {
  switch (type) {
    case ElementType::kQ8_0:
      return of(Blocks<ElementType::kQ8_0>());
    case ElementType::kQ4_0:
      return of(Blocks<ElementType::kQ4_0>());
    case ElementType::kQ4_1:
      return of(Blocks<ElementType::kQ4_1>());
    case ElementType::kQ5_0:
      return of(Blocks<ElementType::kQ5_0>());
    case ElementType::kQ5_1:
      return of(Blocks<ElementType::kQ5_1>());
    case ElementType::kQ4_K:
      return of(Blocks<ElementType::kQ4_K>());
    case ElementType::kQ5_K:
      return of(Blocks<ElementType::kQ5_K>());
    case ElementType::kQ6_K:
      return of(Blocks<ElementType::kQ6_K>());
    default:
      assert(false);
  }
}

// Position of the bits of a run's inputs, as row numbers in a block of a panel; row 0 follows the
// float16 numbers.
struct RunPlace {
  int64_t low = 0;        // row of the first input's low bits; the next input's row follows
  bool is_upper = false;  // whether the low bits are in the upper half of each byte
  int64_t high = 0;  // row of the fifth and sixth bits, which begin at bit `high_bit` of a byte
  int high_bit = 0;
};
template <class Block>
constexpr RunPlace PlaceOf(int64_t run) {
  const int number = static_cast<int>(run);
  if (Block::kBits == 6) {  // two halves of 128 values
    return {run / 8 * 64 + run % 4 * 16, run % 8 >= 4, 128 + run / 8 * 32 + run % 2 * 16,
            number % 8 / 2 * 2};
  }
  // rows 0 to 11: scales; for Q5_K, 32 rows with the fifth bits of all groups follow
  if (Block::kIsK) {
    return {(Block::kBits == 5 ? 44 : 12) + run / 2 * 32, run % 2 == 1, 12, number};
  }
  return {Block::kBits == 5 ? 4 : 0, run == 1, 2 * run, 0};
}
// Returns the row of one input's high bits, and the position of the first of these bits in a byte.
template <class Block>
constexpr RunPlace HighOf(RunPlace place, int64_t input) {
  const bool is_byte_of_eight = Block::kBits == 5 && !Block::kIsK;
  place.high += is_byte_of_eight ? input / 8 : input;
  place.high_bit += is_byte_of_eight ? static_cast<int>(input % 8) : 0;
  return place;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_QUANTIZED_BLOCK_PLACES_H_
