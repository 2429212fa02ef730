// Matrix instructions of GPUs for block programs (block_program.h): ldmatrix, mma.sync m16n8k16 of
// bfloat16 with float32 sums, and mma.sync m16n8k32 of 8-bit integers with 32-bit sums. On the CPU,
// FusedTile computes the step of bfloat16 (worker/kernels).
//
// They are warp-wide operations: call them inside FOR_WARPS and outside FOR_LANES.
//
// The bits of bfloat16 are those of FusedDot on compute capability 9.0. Earlier GPUs give other
// bits. Integer sums are exact.
#ifndef HEARTH_WORKER_DEVICE_MATRIX_INSTRUCTIONS_H_
#define HEARTH_WORKER_DEVICE_MATRIX_INSTRUCTIONS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "worker/device/block_program.h"

#if !defined(__CUDA_ARCH__)
#include "worker/kernels/fused_tile.h"
#endif

namespace hearth {

// Loads four matrices of 8 rows of 16 bytes from shared memory. address(i): address of row i % 8 of
// matrix i / 8. Lane l gets the four bytes number l % 4 of row l / 4 of each matrix m, in
// to[at + m].
template <int kWords, int kWarps, typename Address>
HEARTH_HOST_DEVICE void LoadMatrices(PerThread<uint32_t, kWords, kWarps>* to, int at, int warp,
                                     const Address& address) {
#if defined(__CUDA_ARCH__)
  uint32_t* words = to->At(0, 0) + at;
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(address(threadIdx.x & 31)));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
#else
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto* row = reinterpret_cast<const char*>(address(matrix * 8 + lane / 4));
      std::memcpy(to->At(warp, lane) + at + matrix, row + lane % 4 * 4, 4);
    }
  }
#endif
}

// Loads four matrices of 8 rows of 8 elements of 16 bits, and transposes each: lane l gets element
// l / 4 of rows l % 4 * 2 and l % 4 * 2 + 1 of matrix m, in to[m].
template <int kWarps, typename Address>
HEARTH_HOST_DEVICE void LoadTransposed(PerThread<uint32_t, 4, kWarps>* to, int warp,
                                       const Address& address) {
#if defined(__CUDA_ARCH__)
  uint32_t* words = to->At(0, 0);
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(address(threadIdx.x & 31)));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
#else
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const uint16_t* rows[2];
      for (int i = 0; i < 2; ++i) rows[i] = address(matrix * 8 + lane % 4 * 2 + i);
      to->At(warp, lane)[matrix] = rows[0][lane / 4] | uint32_t{rows[1][lane / 4]} << 16;
    }
  }
#endif
}

#if !defined(__CUDA_ARCH__)
// Adds one k16 step of row `row` to its sums, for the 16 outputs of `tile`. The sums lie as
// AddMatrixStep describes.
template <int N, int kWarps>
void AddTileRow(const FusedTile& tile, const uint16_t* inputs, int row, int warp,
                PerThread<float, N, kWarps>* sums, int sums_at = 0) {
  const int of_lane = sums_at + row / 8 * 4 + row % 2, t = row % 8 / 2;
  float own[FusedTile::kOutputs];
  for (int i = 0; i < FusedTile::kOutputs; ++i) {
    own[i] = sums->At(warp, i % 8 * 4 + t)[of_lane + i / 8 * 2];
  }
  tile.AddTo(inputs, own);
  for (int i = 0; i < FusedTile::kOutputs; ++i) {
    sums->At(warp, i % 8 * 4 + t)[of_lane + i / 8 * 2] = own[i];
  }
}
#endif

// One k16 step for 16 outputs and kTiles * 8 rows: sums += weights * rows. Lane l, with g = l / 4
// and t = l % 4, holds:
//   weights[0], [1]  inputs 2t and 2t + 1 of outputs g and g + 8
//   weights[2], [3]  inputs 2t + 8 and 2t + 9 of outputs g and g + 8
//   rows[at + 2n]    inputs 2t and 2t + 1 of row 8n + g; rows[at + 2n + 1]: the inputs 8 later
//   sums[sums_at + 4n + i]  output g + i / 2 * 8 of row 8n + 2t + i % 2
// `used`: number of rows whose sums are used. The emulation does not compute the other sums.
template <int kTiles, int kWarps, int kRowWords, int kSums>
HEARTH_HOST_DEVICE void AddMatrixStep(PerThread<uint32_t, 4, kWarps>* weights,
                                      PerThread<uint32_t, kRowWords, kWarps>* rows, int at,
                                      [[maybe_unused]] int used, int warp,
                                      PerThread<float, kSums, kWarps>* sums, int sums_at = 0) {
#if defined(__CUDA_ARCH__)
  const uint32_t* a = weights->At(0, 0);
  HEARTH_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    const uint32_t* b = rows->At(0, 0) + at + 2 * n;
    float* c = sums->At(0, 0) + sums_at + 4 * n;
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  FusedTile::Weights of_outputs;
  uint16_t of_rows[kTiles * 8][kStepInputs];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      std::memcpy(&of_outputs[g + i % 2 * 8][2 * t + i / 2 * 8], weights->At(warp, lane) + i, 4);
    }
    for (int i = 0; i < kTiles * 2; ++i) {
      std::memcpy(&of_rows[i / 2 * 8 + g][2 * t + i % 2 * 8], rows->At(warp, lane) + at + i, 4);
    }
  }
  const FusedTile tile(of_outputs);
  for (int row = 0; row < kTiles * 8 && row < used; ++row) {
    AddTileRow(tile, of_rows[row], row, warp, sums, sums_at);
  }
#endif
}

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

// One step of integers for 16 outputs and kTiles * 8 rows: sums = start + weights * rows. Lane l,
// with g = l / 4 and t = l % 4, holds four integers in each word:
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

#endif  // HEARTH_WORKER_DEVICE_MATRIX_INSTRUCTIONS_H_
