// Matrix instruction of GPUs on integers, for block programs (block_program.h): mma.sync m16n8k32
// of 8-bit integers with 32-bit sums. All results are exact, so each GPU and the emulation give the
// same bits.
//
// Call MultiplyIntegers inside FOR_WARPS and outside FOR_LANES: it is warp-wide.
#ifndef HEARTH_WORKER_DEVICE_INTEGER_INSTRUCTIONS_H_
#define HEARTH_WORKER_DEVICE_INTEGER_INSTRUCTIONS_H_

#include <cstdint>
#include <type_traits>

#include "worker/device/block_program.h"

namespace hearth {

struct alignas(8) Word2 {
  uint32_t v[2];
};
HEARTH_HOST_DEVICE Word2 LoadWord2(const void* from) {
  return *reinterpret_cast<const Word2*>(from);
}

#define HEARTH_MULTIPLY_INTEGERS(weight_type)                                      \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." weight_type                \
               ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};" \
               : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start))

// One step for 16 outputs and kTiles * 8 rows: sums = start + weights * rows. Lane l, with g = l /
// 4 and t = l % 4, holds four integers in each word:
//   weights[0], [1]  inputs 4t to 4t + 3 of outputs g and g + 8
//   weights[2], [3]  inputs 4t + 16 to 4t + 19 of outputs g and g + 8
//   rows[2n]         inputs 4t to 4t + 3 of row 8n + g; rows[2n + 1]: the inputs 16 later
//   sums[4n + i]     output g + i / 2 * 8 of row 8n + 2t + i % 2
// The integers of rows are signed, those of weights are signed if kIsSigned. `used`: number of rows
// whose sums are used. In the emulation the other sums are `start`.
template <bool kIsSigned, int kTiles, int kWarps>
HEARTH_HOST_DEVICE void MultiplyIntegers(PerThread<uint32_t, 4, kWarps>* weights,
                                         PerThread<uint32_t, kTiles * 2, kWarps>* rows,
                                         int32_t start, [[maybe_unused]] int used, int warp,
                                         PerThread<int32_t, kTiles * 4, kWarps>* sums) {
#if defined(__CUDA_ARCH__)
  const uint32_t* a = weights->At(0, 0);
  HEARTH_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    const uint32_t* b = rows->At(0, 0) + 2 * n;
    int32_t* c = sums->At(0, 0) + 4 * n;
    if constexpr (kIsSigned) {
      HEARTH_MULTIPLY_INTEGERS("s8");
    } else {
      HEARTH_MULTIPLY_INTEGERS("u8");
    }
  }
#else
  using Weight = std::conditional_t<kIsSigned, int8_t, uint8_t>;
  int16_t of_outputs[16][32], of_rows[kTiles * 8][32];
  for (int i = 0; i < 32 * 4 * 4; ++i) {  // lane, word, byte
    const int lane = i / 16, word = i / 4 % 4, input = lane % 4 * 4 + word / 2 * 16 + i % 4;
    of_outputs[lane / 4 + word % 2 * 8][input] =
        static_cast<Weight>(weights->At(warp, lane)[word] >> i % 4 * 8);
  }
  for (int i = 0; i < 32 * kTiles * 2 * 4; ++i) {
    const int lane = i / (kTiles * 8), word = i / 4 % (kTiles * 2);
    of_rows[word / 2 * 8 + lane / 4][lane % 4 * 4 + word % 2 * 16 + i % 4] =
        static_cast<int8_t>(rows->At(warp, lane)[word] >> i % 4 * 8);
  }
  for (int i = 0; i < 16 * kTiles * 8; ++i) {
    const int output = i % 16, row = i / 16;
    int32_t sum = start;
    for (int k = 0; k < 32 && row < used; ++k) sum += of_outputs[output][k] * of_rows[row][k];
    sums->At(warp, output % 8 * 4 + row % 8 / 2)[row / 8 * 4 + output / 8 * 2 + row % 2] = sum;
  }
#endif
}
#undef HEARTH_MULTIPLY_INTEGERS

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_INTEGER_INSTRUCTIONS_H_
