// Quantized weights in blocks, as GGUF files store them: conversion of rows to float32 and back.
//
// The value of an element (d and m are float16 numbers; all other numbers are small integers):
//   Q8_0, Q4_0, Q5_0   32 values   d * q
//   Q4_1, Q5_1         32 values   d * q + m
//   Q4_K, Q5_K         256 values  (d * scale) * q - (m * least), one scale and least for each 32
//   Q6_K               256 values  (d * scale) * q, one scale for each 16
// Every product is exact in float32, so only the final sum is rounded.
//
// Thread safety: pure functions. All functions REQUIRE whole blocks and the mode that float_mode.h
// sets.
#ifndef HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_
#define HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "worker/kernels/base/element.h"

namespace hearth {

// Converts `values` values of any type to float32.
void WidenRow(ElementType type, const std::byte* row, int64_t values, float* to);

// Position of a block's float16 numbers: d, and in some types m after d.
struct BlockHalves {
  int64_t at, count;  // offset in bytes from the beginning of the block; number of float16 numbers
};
constexpr BlockHalves HalvesOf(ElementType type) {
  const bool has_least = type == ElementType::kQ4_1 || type == ElementType::kQ5_1 ||
                         type == ElementType::kQ4_K || type == ElementType::kQ5_K;
  return {type == ElementType::kQ6_K ? 208 : 0, has_least ? 2 : 1};
}

// A run of 32 values of a block: value i is d * part[i / 16] * (q[i] - zero) + m. Except in Q6_K,
// `part` is 1. In types with a least value, `zero` is 0; in the other types, m is +0.
struct BlockRun {
  int q[32], zero = 0, part[2] = {1, 1};
  float d = 0, m = 0;
};
// Returns run number `run` of a block. REQUIRES: `type` is a block type.
BlockRun RunOf(ElementType type, const std::byte* block, int64_t run);

// Quantizes floats to whole blocks of Q8_0 or Q4_0; the last block is padded with zeros:
//   Q8_0   d = (the largest magnitude) / 127                         q = value / d, in [-127, 127]
//   Q4_0   d = (the first value with the largest magnitude) / -8       q = value / d, in [-8, 7]
// d is rounded to the nearest float16, and q to the nearest integer, ties to even. If d is 0, q is
// 0. If a block has a value that is not finite or is too large for float16, d is NaN.
void QuantizeRow(ElementType type, const float* row, int64_t values, std::byte* to);

// Returns whether all d and m of the row are finite; always true for types without blocks.
bool ScalesAreFinite(ElementType type, const std::byte* row, int64_t values);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_QUANTIZED_WEIGHT_BLOCKS_H_
