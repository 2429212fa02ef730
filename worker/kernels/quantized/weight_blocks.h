// Weights in blocks, as GGUF files have them, one value after the other as float32.
//
// What a block's values are (d and m are float16; all else are small integers):
//   Q8_0, Q4_0, Q5_0   32 values   d * q
//   Q4_1, Q5_1         32 values   d * q + m
//   Q4_K, Q5_K         256 values  (d * scale) * q - (m * least), a scale and a least for each 32
//   Q6_K               256 values  (d * scale) * q, a scale for each 16
// Every product is exact in float32, so that a value is rounded once at most, at the sum.
//
// Thread safety: pure functions. REQUIRES of all: whole blocks.
#ifndef HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_
#define HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "worker/kernels/base/element.h"

namespace hearth {

// Of any type but kInt8.
void WidenRow(ElementType type, const std::byte* row, int64_t values, float* to);

// Whether all of d and m are finite; true of a type that is none of blocks.
bool ScalesAreFinite(ElementType type, const std::byte* row, int64_t values);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_
