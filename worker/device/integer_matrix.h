// The layout of quantized weights and quantized rows in device memory, for integer products
// (worker/kernels/integer_product.h).
//
// A matrix is [columns / 16][blocks of 32 inputs], in tiles of 16 columns by 32 inputs. A tile
// holds the integers in the order in which the lanes of a warp pass them to mma.sync m16n8k32, then
// the scales of its columns. A weight's value is d * part[input / 16] * integer + m.
//
// form       integers            scales of a tile, for each column    types (weight_blocks.h)
// kInt8      8 bits, signed      d (float16)                          Q8_0, Q5_0
// kInt4      4 bits, signed      d (float16)                          Q4_0
// kInt4Least 4 bits, unsigned    d, m (float32)                       Q4_1, Q4_K
// kInt8Parts 8 bits, signed      d, m (float32), part[2] (int8)       Q6_K, Q5_1, Q5_K
//
// If the matrices that are stacked into one have different forms, the stack has the form
// kInt8Parts, which can hold every type.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_INTEGER_MATRIX_H_
#define HEARTH_WORKER_DEVICE_INTEGER_MATRIX_H_

#include <cstddef>
#include <cstdint>

#include "worker/kernels/functions.h"
#include "worker/kernels/fused_dot.h"

namespace hearth {

enum class IntegerForm : int32_t { kNone, kInt8, kInt4, kInt4Least, kInt8Parts };

// Sizes and offsets in a tile, in bytes.
struct IntegerTile {
  static constexpr int kColumns = 16, kInputs = 32;

  bool is_narrow, has_least, has_parts;
  int scales, leasts, parts, bytes;
};
HEARTH_HOST_DEVICE constexpr IntegerTile TileOf(IntegerForm form) {
  switch (form) {
    case IntegerForm::kInt8:
      return {false, false, false, 512, 0, 0, 544};
    case IntegerForm::kInt4:
      return {true, false, false, 256, 0, 0, 288};
    case IntegerForm::kInt4Least:
      return {true, true, false, 256, 320, 0, 384};
    default:
      return {false, true, true, 512, 576, 640, 672};
  }
}

HEARTH_HOST_DEVICE constexpr int IntegerBlocks(int inputs) {
  return (inputs + IntegerTile::kInputs - 1) / IntegerTile::kInputs;
}

// Position of a weight's integer in a tile. Lane 4 * (column % 8) + input % 16 / 4 holds columns
// `column % 8` and 8 more, and inputs of both halves of the block. With 4 bits, a byte holds one
// input of the first half in its upper four bits, and the input 16 later in its lower four bits.
struct IntegerPlace {
  int byte;
  bool is_lower;
};
HEARTH_HOST_DEVICE constexpr IntegerPlace PlaceInTile(bool is_narrow, int column, int input) {
  const int lane = column % 8 * 4 + input % 16 / 4, half = input / 16, of_word = input % 4;
  if (is_narrow) return {lane * 8 + column / 8 * 4 + of_word, half == 1};
  return {lane * 16 + (column / 8 + 2 * half) * 4 + of_word, false};
}

// Return numbers of the tile that begins at `from`: the scale of a column, and the part of a half.
HEARTH_HOST_DEVICE float IntegerScale(IntegerTile tile, const unsigned char* from, int column) {
  if (tile.has_least) return reinterpret_cast<const float*>(from + tile.scales)[column];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(from + tile.scales)[column];
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
  return wide;
#else
  return WidenOne(Float16{bits});
#endif
}
HEARTH_HOST_DEVICE float IntegerPart(IntegerTile tile, const unsigned char* from, int column,
                                     int half) {
  return static_cast<float>(static_cast<int8_t>(from[tile.parts + 2 * column + half]));
}

// Returns the value of one weight of a matrix that has `inputs` inputs. A zero may have another
// sign than on the CPU.
HEARTH_HOST_DEVICE float IntegerWeight(IntegerForm form, const unsigned char* data, int inputs,
                                       int column, int input) {
  const IntegerTile tile = TileOf(form);
  const unsigned char* from =
      data + (static_cast<int64_t>(column / IntegerTile::kColumns) * IntegerBlocks(inputs) +
              input / IntegerTile::kInputs) *
                 tile.bytes;
  column %= IntegerTile::kColumns;
  input %= IntegerTile::kInputs;
  const IntegerPlace place = PlaceInTile(tile.is_narrow, column, input);
  int q = static_cast<int8_t>(from[place.byte]);
  if (tile.is_narrow) {
    q = place.is_lower ? q & 15 : q >> 4 & 15;
    if (!tile.has_least) q = (q ^ 8) - 8;
  }
  float scale = IntegerScale(tile, from, column);
  if (tile.has_parts) scale = exact::Mul(scale, IntegerPart(tile, from, column, input / 16));
  const float value = exact::Mul(scale, static_cast<float>(q));
  if (!tile.has_least) return value;
  return exact::Add(value, reinterpret_cast<const float*>(from + tile.leasts)[column]);
}

// Rows that QuantizeProgram has quantized. `stride`: number of rows, rounded up to a multiple of 8.
struct IntegerRows {
  // [blocks][stride][32]; byte 8t + 4h + i of a row is the integer of input 16h + 4t + i
  unsigned char* ints = nullptr;
  float* scales = nullptr;  // d: [blocks][stride]
  int stride = 0;

  static constexpr int PaddedRows(int rows) { return (rows + 7) / 8 * 8; }
};

inline constexpr size_t IntegerMatrixBytes(IntegerForm form, int inputs, int columns) {
  return static_cast<size_t>(columns / IntegerTile::kColumns) *
         static_cast<size_t>(IntegerBlocks(inputs)) * static_cast<size_t>(TileOf(form).bytes);
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_INTEGER_MATRIX_H_
