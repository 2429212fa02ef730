// Weights in blocks, as GGUF files have them: one value after the other as float32, and back.
//
// What a block's values are (d and m are float16; all else are small integers):
//   Q8_0, Q4_0, Q5_0   32 values   d * q
//   Q4_1, Q5_1         32 values   d * q + m
//   Q4_K, Q5_K         256 values  (d * scale) * q - (m * least), a scale and a least for each 32
//   Q6_K               256 values  (d * scale) * q, a scale for each 16
// Every product is exact in float32, so that a value is rounded once at most, at the sum.
//
// Thread safety: pure functions. REQUIRES of all: whole blocks; the mode that float_mode.h sets.
#ifndef HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_
#define HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "worker/kernels/base/element.h"

namespace hearth {

// Of any type.
void WidenRow(ElementType type, const std::byte* row, int64_t values, float* to);

// The float16 numbers of a block: d, and of some types m behind it.
struct BlockHalves {
  int64_t at, count;  // from the block's first byte
};
constexpr BlockHalves HalvesOf(ElementType type) {
  const bool has_least = type == ElementType::kQ4_1 || type == ElementType::kQ5_1 ||
                         type == ElementType::kQ4_K || type == ElementType::kQ5_K;
  return {type == ElementType::kQ6_K ? 208 : 0, has_least ? 2 : 1};
}

// 32 values of a block: value i is d * part[i / 16] * (q[i] - zero) + m. `part` is 1 but of Q6_K;
// of types with a least value zero is 0, of the others m is +0.
struct BlockRun {
  int q[32], zero = 0, part[2] = {1, 1};
  float d = 0, m = 0;
};
// Run number `run` of a block. REQUIRES: a type in blocks.
BlockRun RunOf(ElementType type, const std::byte* block, int64_t run);

// Floats to whole blocks of Q8_0 or Q4_0, with zeros behind the last value:
//   Q8_0   d = the largest magnitude / 127     q = value / d, -127 to 127
//   Q4_0   d = the value that has it / -8      q = value / d, -8 to 7; the first of equal
//   magnitudes
// d is the nearest float16 and q the nearest integer, 0 where d is 0; of two as near the even one.
// d is a NaN of a block with a value that is not finite, or greater than float16 can tell.
void QuantizeRow(ElementType type, const float* row, int64_t values, std::byte* to);

// Whether all of d and m are finite; true of a type that is none of blocks.
bool ScalesAreFinite(ElementType type, const std::byte* row, int64_t values);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_
