// Matrix instructions of GPUs on integers, for block programs (block_program.h): mma.sync m16n8k32
// and m16n8k16 of 8-bit integers with 32-bit sums. All results are exact, so each GPU and the
// emulation give the same bits.
//
// Call MultiplyIntegers inside FOR_WARPS and outside FOR_LANES: it is warp-wide.
#ifndef HEARTH_WORKER_DEVICE_INTEGER_INSTRUCTIONS_H_
#define HEARTH_WORKER_DEVICE_INTEGER_INSTRUCTIONS_H_

#include <cstdint>
#include <cstring>

#include "worker/device/block_program.h"

namespace hearth {

struct alignas(8) Word2 {
  uint32_t v[2];
};
HEARTH_HOST_DEVICE Word2 LoadWord2(const void* from) {
  return *reinterpret_cast<const Word2*>(from);
}

// The inputs of a block of 32 that a step multiplies.
enum class StepHalf { kBoth, kFirst, kSecond };

// One step for 16 outputs and kTiles * 8 rows: sums = start + weights * rows. Lane l, with g = l /
// 4 and t = l % 4, holds four integers in each word:
//   weights[0], [1]  inputs 4t to 4t + 3 of outputs g and g + 8
//   weights[2], [3]  inputs 4t + 16 to 4t + 19 of outputs g and g + 8
//   rows[2n]         inputs 4t to 4t + 3 of row 8n + g; rows[2n + 1]: the inputs 16 later
//   sums[4n + i]     output g + i / 2 * 8 of row 8n + 2t + i % 2
// The integers of rows are signed, those of weights are signed if kIsSigned. kHalf: kFirst uses
// only weights[0], [1] and rows[2n]; kSecond only the other words. `used`: number of rows whose
// sums are used. The emulation does not compute the other sums.
template <bool kIsSigned, StepHalf kHalf, int kTiles, int kWarps>
HEARTH_HOST_DEVICE void MultiplyIntegers(PerThread<uint32_t, 4, kWarps>* weights,
                                         PerThread<uint32_t, kTiles * 2, kWarps>* rows,
                                         int32_t start, [[maybe_unused]] int used, int warp,
                                         PerThread<int32_t, kTiles * 4, kWarps>* sums) {
  static_assert(kIsSigned || kHalf == StepHalf::kBoth, "no form has unsigned weights and parts");
#if defined(__CUDA_ARCH__)
  const uint32_t* a = weights->At(0, 0);
  HEARTH_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    const uint32_t* b = rows->At(0, 0) + 2 * n;
    int32_t* c = sums->At(0, 0) + 4 * n;
    if constexpr (kHalf != StepHalf::kBoth) {
      constexpr int kAt = kHalf == StepHalf::kFirst ? 0 : 1;
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
          "{%7,%7,%7,%7};"
          : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
          : "r"(a[2 * kAt]), "r"(a[2 * kAt + 1]), "r"(b[kAt]), "r"(start));
    } else if constexpr (kIsSigned) {
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%10,%10,%10,%10};"
          : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%10,%10,%10,%10};"
          : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
    }
  }
#else
  constexpr int kFirst = kHalf == StepHalf::kSecond ? 16 : 0;
  constexpr int kEnd = kHalf == StepHalf::kFirst ? 16 : 32;
  int16_t of_outputs[16][32], of_rows[kTiles * 8][32];
  const auto widen = [](uint32_t word, bool is_signed, int16_t* to) {
    for (int i = 0; i < 4; ++i) {
      const auto byte = static_cast<uint8_t>(word >> 8 * i);
      to[i] = is_signed ? static_cast<int16_t>(static_cast<int8_t>(byte)) : int16_t{byte};
    }
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      widen(weights->At(warp, lane)[i], kIsSigned, &of_outputs[g + i % 2 * 8][4 * t + i / 2 * 16]);
    }
    for (int i = 0; i < kTiles * 2; ++i) {
      widen(rows->At(warp, lane)[i], true, &of_rows[i / 2 * 8 + g][4 * t + i % 2 * 16]);
    }
  }
  for (int row = 0; row < kTiles * 8; ++row) {
    for (int output = 0; output < 16; ++output) {
      int32_t sum = start;
      for (int k = kFirst; k < kEnd && row < used; ++k)
        sum += of_outputs[output][k] * of_rows[row][k];
      sums->At(warp, output % 8 * 4 + row % 8 / 2)[row / 8 * 4 + output / 8 * 2 + row % 2] = sum;
    }
  }
#endif
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_INTEGER_INSTRUCTIONS_H_
