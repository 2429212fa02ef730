// The layout of quantized weights and quantized rows in device memory, for integer products
// (worker/kernels/integer_product.h), and the quantization of rows within GPU programs.
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
// Thread safety: pure functions; those with FOR_LANES are phases of a program (block_program.h).
#ifndef HEARTH_WORKER_DEVICE_INTEGER_MATRIX_H_
#define HEARTH_WORKER_DEVICE_INTEGER_MATRIX_H_

#include <cstddef>
#include <cstdint>

#include "worker/device/block_program.h"
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

// Quantized rows: the input of integer products. `stride`: number of rows, rounded up to a multiple
// of 8.
struct IntegerRows {
  // [blocks][stride][32]; byte ByteOf(input % 32) of a row is the integer of an input
  unsigned char* ints = nullptr;
  float* scales = nullptr;  // d: [blocks][stride]
  int stride = 0;

  static constexpr int PaddedRows(int rows) { return (rows + 7) / 8 * 8; }
  static HEARTH_HOST_DEVICE int ByteOf(int input) {
    return input % 16 / 4 * 8 + input / 16 * 4 + input % 4;
  }
};

// Scale and integers of a block of 32 inputs of a row.
struct IntegerBlockScale {
  float scale, inverse;
  bool has_integers;  // else all integers are 0

  // `most`: the bits of the largest |x| of the block. The bits of a NaN are the largest.
  HEARTH_HOST_DEVICE explicit IntegerBlockScale(uint32_t most) {
    constexpr uint32_t kInfinityBits = 0x7f800000u, kNaNBits = 0x7fc00000u;
    constexpr uint32_t kLeastBits = 0x0d800000u;  // 2^-100, which is kLeastQuantized
    const bool is_zero = most < kLeastBits;
    has_integers = !is_zero && most < kInfinityBits;
    scale = is_zero ? 0.0f : exact::FloatOf(kNaNBits);
    inverse = 0;
    if (!has_integers) return;
    inverse = exact::Div(127.0f, exact::FloatOf(most));
    scale = exact::Div(exact::FloatOf(most), 127.0f);
  }
  // Returns the integer as a byte.
  HEARTH_HOST_DEVICE uint32_t IntegerOf(float value) const {
    // Adding kRounds gives the nearest integer in the lowest bits, which are 0 in kRounds.
    constexpr float kRounds = 0x1.8p+23f;
    if (!has_integers) return 0;
    return exact::BitsOf(exact::Add(exact::Mul(value, inverse), kRounds)) & 0xff;
  }
};

// Sets most[0] to the greater of most[0] and |value|, as bits. A NaN is the greatest.
HEARTH_HOST_DEVICE void KeepMost(uint32_t bits, uint32_t* most) {
  const uint32_t size = bits & 0x7fffffffu;
  if (*most < size) *most = size;
}

// Inputs of a row that a warp quantizes at once: four blocks; a lane has four inputs of a block.
inline constexpr int kQuantizedInputs = 4 * IntegerTile::kInputs;

// Quantizes inputs [first, first + kQuantizedInputs) of a row of `inputs` inputs, with one warp.
// `row`: number of the row in `to`. Inputs past the last input are 0.
HEARTH_HOST_DEVICE void QuantizeInputs(const float* values, int inputs, int first,
                                       const IntegerRows& to, int row) {
  PerThread<Float4, 1, 1> own;
  PerThread<uint32_t, 2, 1> most;
  FOR_LANES(lane) {
    const int input = first + lane * 4;
    Float4 four = {};
    if (input < inputs) four = LoadFloat4(values + input);
    own.At(0, lane)[0] = four;
    most.At(0, lane)[0] = 0;
    HEARTH_UNROLL
    for (int i = 0; i < 4; ++i) KeepMost(exact::BitsOf(four.v[i]), most.At(0, lane));
  }
  HEARTH_UNROLL
  for (int mask = 1; mask < 8; mask *= 2) {
    ShuffleXor(&most, 0, mask, 0, &most, 1);
    FOR_LANES(lane) { KeepMost(most.At(0, lane)[1], most.At(0, lane)); }
  }
  FOR_LANES(lane) {
    const int input = first + lane * 4, block = input / IntegerTile::kInputs;
    if (block >= IntegerBlocks(inputs)) continue;
    const IntegerBlockScale scale(most.At(0, lane)[0]);
    uint32_t word = 0;
    HEARTH_UNROLL
    for (int i = 0; i < 4; ++i) word |= scale.IntegerOf(own.At(0, lane)[0].v[i]) << (8 * i);
    const int64_t at = static_cast<int64_t>(block) * to.stride + row;
    unsigned char* const ints = to.ints + at * IntegerTile::kInputs;
    *reinterpret_cast<uint32_t*>(ints + IntegerRows::ByteOf(input % IntegerTile::kInputs)) = word;
    if (lane % 8 == 0) to.scales[at] = scale.scale;
  }
}

// Quantizes a block with one warp: lane i has input i, values->At(0, i)[at]. `block`: number of the
// block in the row.
template <int N>
HEARTH_HOST_DEVICE void QuantizeBlock(PerThread<float, N, 1>* values, int at, int block,
                                      const IntegerRows& to, int row) {
  PerThread<uint32_t, 2, 1> most;
  FOR_LANES(lane) {
    most.At(0, lane)[0] = 0;
    KeepMost(exact::BitsOf(values->At(0, lane)[at]), most.At(0, lane));
  }
  HEARTH_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    ShuffleXor(&most, 0, mask, 0, &most, 1);
    FOR_LANES(lane) { KeepMost(most.At(0, lane)[1], most.At(0, lane)); }
  }
  FOR_LANES(lane) {
    const IntegerBlockScale scale(most.At(0, lane)[0]);
    const int64_t place = static_cast<int64_t>(block) * to.stride + row;
    to.ints[place * IntegerTile::kInputs + IntegerRows::ByteOf(lane)] =
        static_cast<unsigned char>(scale.IntegerOf(values->At(0, lane)[at]));
    if (lane == 0) to.scales[place] = scale.scale;
  }
}

// Quantizes a row of `inputs` inputs, which earlier phases have written to shared memory, with all
// warps. Does nothing if `to` is null.
template <int kWarps>
HEARTH_HOST_DEVICE void QuantizeRow(const float* values, int inputs, const IntegerRows& to,
                                    int row) {
  if (to.ints == nullptr) return;
  BARRIER();
  FOR_WARPS(warp, kWarps) {
    for (int first = warp * kQuantizedInputs; first < inputs; first += kWarps * kQuantizedInputs) {
      QuantizeInputs(values, inputs, first, to, row);
    }
  }
}

inline constexpr size_t IntegerMatrixBytes(IntegerForm form, int inputs, int columns) {
  return static_cast<size_t>(columns / IntegerTile::kColumns) *
         static_cast<size_t>(IntegerBlocks(inputs)) * static_cast<size_t>(TileOf(form).bytes);
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_INTEGER_MATRIX_H_
