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
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kTiles * 4; ++i) {
      const int first = lane / 4 * 4, row = lane % 4 * 2 + i % 2;  // first lane of the output
      int32_t sum = start;
      for (int k = 0; k < 32 && i / 4 * 8 + row < used; ++k) {
        const int t = k % 16 / 4, shift = k % 4 * 8;
        const uint32_t w = weights->At(warp, first + t)[i % 4 / 2 + k / 16 * 2] >> shift;
        const uint32_t x = rows->At(warp, row * 4 + t)[i / 4 * 2 + k / 16] >> shift;
        sum += static_cast<Weight>(w) * static_cast<int8_t>(x);
      }
      sums->At(warp, lane)[i] = sum;
    }
  }
#endif
}
#undef HEARTH_MULTIPLY_INTEGERS

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_INTEGER_INSTRUCTIONS_H_
