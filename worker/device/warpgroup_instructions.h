// Matrix instructions of a warpgroup (four warps) for block programs: wgmma m64nNk16 of bfloat16
// with float32 sums, which only compute capability 9.0 has. Its steps have the bits of FusedDot. On
// the CPU, FusedTile computes them; on other GPUs the functions do nothing.
//
// The instructions are asynchronous: AddWarpgroupStep starts a step, CommitSteps closes a group of
// steps, and WaitSteps waits for groups. Until then the program must not change the operands, and
// must not read the sums.
//
// An operand is a tile in shared memory: bfloat16 [inputs / 8][rows][8], the layout of DeviceMatrix
// and Bf16Rows. This is wgmma's layout without a swizzle: 8 inputs of 8 rows are 128 contiguous
// bytes.
#ifndef HEARTH_WORKER_DEVICE_WARPGROUP_INSTRUCTIONS_H_
#define HEARTH_WORKER_DEVICE_WARPGROUP_INSTRUCTIONS_H_

#include <cstdint>
#include <cstring>

#include "worker/device/block_program.h"
#include "worker/device/matrix_instructions.h"

#if !defined(__CUDA_ARCH__)
#include <deque>
#include <functional>
#include <utility>
#include <vector>
#endif

namespace hearth {

#if !defined(__CUDA_ARCH__)
// Emulates asynchronous steps: a step is computed when the program waits for it. If copies are late
// (LateCopies), a step is computed at once, so that a missing wait for copies gives wrong bits.
//
// Thread safety: each thread has its own queue.
struct LateSteps {
  using Group = std::vector<std::function<void()>>;
  inline static thread_local Group open;
  inline static thread_local std::deque<Group> groups;

  static void Wait(size_t left) {
    for (; groups.size() > left; groups.pop_front()) {
      for (const std::function<void()>& step : groups.front()) step();
    }
  }
};
#endif

// Makes the calling thread's writes and finished copies to shared memory visible to wgmma. A
// barrier must follow.
HEARTH_HOST_DEVICE void ShowToWarpgroups() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Keeps the compiler from moving accesses to the sums across this call.
template <int N, int kWarps>
HEARTH_HOST_DEVICE void HoldSums([[maybe_unused]] PerThread<float, N, kWarps>* sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  HEARTH_UNROLL
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums->At(0, 0)[i])::"memory");
#endif
}

// Orders the steps that follow after earlier accesses to the sums.
template <int N, int kWarps>
HEARTH_HOST_DEVICE void BeginSteps(PerThread<float, N, kWarps>* sums) {
  HoldSums(sums);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
HEARTH_HOST_DEVICE void CommitSteps() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#elif !defined(__CUDA_ARCH__)
  LateSteps::groups.push_back(std::exchange(LateSteps::open, {}));
#endif
}
// Waits until at most the kLeft most recent groups of steps are in progress.
template <int kLeft, int N, int kWarps>
HEARTH_HOST_DEVICE void WaitSteps(PerThread<float, N, kWarps>* sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#elif !defined(__CUDA_ARCH__)
  LateSteps::Wait(kLeft);
#endif
  HoldSums(sums);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Returns a descriptor of an operand: its address, and the distances between groups of 8 inputs and
// between groups of 8 rows, all divided by 16.
__device__ __forceinline__ uint64_t TileDescriptor(const unsigned char* tile, int group_bytes) {
  const uint64_t address = __cvta_generic_to_shared(tile) & 0x3ffff;
  return address >> 4 | static_cast<uint64_t>(group_bytes >> 4) << 16 | uint64_t{128 >> 4} << 32;
}
// Operand lists: TEN(t) is %t0 to %t9; R8 to R128 are registers of d.
#define HEARTH_TEN(t) \
  "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define HEARTH_LIST32 HEARTH_TEN() HEARTH_TEN(1) HEARTH_TEN(2) "%30,%31"
#define HEARTH_SIXTY \
  HEARTH_TEN() HEARTH_TEN(1) HEARTH_TEN(2) HEARTH_TEN(3) HEARTH_TEN(4) HEARTH_TEN(5)
#define HEARTH_LIST64 HEARTH_SIXTY "%60,%61,%62,%63"
#define HEARTH_NINETY HEARTH_SIXTY HEARTH_TEN(6) HEARTH_TEN(7) HEARTH_TEN(8)
#define HEARTH_LIST96 HEARTH_NINETY "%90,%91,%92,%93,%94,%95"
#define HEARTH_LIST128                       \
  HEARTH_NINETY HEARTH_TEN(9) HEARTH_TEN(10) \
      HEARTH_TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"
#define HEARTH_R4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define HEARTH_R16(i) HEARTH_R4(i), HEARTH_R4((i) + 4), HEARTH_R4((i) + 8), HEARTH_R4((i) + 12)
#define HEARTH_R32(i) HEARTH_R16(i), HEARTH_R16((i) + 16)
#define HEARTH_WGMMA(columns, list, a, b, ...)                                                   \
  asm volatile(                                                                                  \
      "{.reg .pred p; setp.ne.b32 p, 1, 0;\n"                                                    \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" list "}, %" #a ", %" #b \
      ", p, 1, 1, 0, 0;}\n"                                                                      \
      : __VA_ARGS__                                                                              \
      : "l"(of_rows), "l"(of_columns))
#endif

// Starts one k16 step for the 64 rows and kColumns columns of a warpgroup: sums += rows * columns.
// `rows` and `columns`: the operands of the warpgroup; `row_group_bytes`, `column_group_bytes`:
// distances between their groups of 8 inputs. Lane l of the warpgroup's warp w, with g = l / 4 and
// t = l % 4, holds in sums[4n + i] row 16w + g + i / 2 * 8 of column 8n + 2t + i % 2.
// `used_rows`, `used_columns`: numbers of rows and columns of the warpgroup whose sums are used.
// The emulation does not compute the other sums.
template <int kColumns, int kWarps>
HEARTH_HOST_DEVICE void AddWarpgroupStep(const unsigned char* rows, int row_group_bytes,
                                         const unsigned char* columns, int column_group_bytes,
                                         [[maybe_unused]] int used_rows,
                                         [[maybe_unused]] int used_columns, int warp,
                                         PerThread<float, kColumns / 2, kWarps>* sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const uint64_t of_rows = TileDescriptor(rows, row_group_bytes);
  const uint64_t of_columns = TileDescriptor(columns, column_group_bytes);
  float* d = sums->At(warp, 0);
  if constexpr (kColumns == 64) {
    HEARTH_WGMMA(64, HEARTH_LIST32, 32, 33, HEARTH_R32(0));
  } else if constexpr (kColumns == 128) {
    HEARTH_WGMMA(128, HEARTH_LIST64, 64, 65, HEARTH_R32(0), HEARTH_R32(32));
  } else if constexpr (kColumns == 192) {
    HEARTH_WGMMA(192, HEARTH_LIST96, 96, 97, HEARTH_R32(0), HEARTH_R32(32), HEARTH_R32(64));
  } else {
    static_assert(kColumns == 256);
    HEARTH_WGMMA(256, HEARTH_LIST128, 128, 129, HEARTH_R32(0), HEARTH_R32(32), HEARTH_R32(64),
                 HEARTH_R32(96));
  }
#elif !defined(__CUDA_ARCH__)
  const int first = warp % 4 * 16;
  if (first >= used_rows) return;
  const auto step = [=] {
    FusedTile::Weights of_rows;
    for (int i = 0; i < FusedTile::kOutputs * 2; ++i) {
      std::memcpy(&of_rows[i / 2][i % 2 * 8], rows + i % 2 * row_group_bytes + (first + i / 2) * 16,
                  16);
    }
    const FusedTile tile(of_rows);
    for (int column = 0; column < kColumns && column < used_columns; ++column) {
      uint16_t inputs[kStepInputs];
      for (int i = 0; i < 2; ++i) {
        std::memcpy(inputs + i * 8, columns + i * column_group_bytes + column * 16, 16);
      }
      AddTileRow(tile, inputs, column, warp, sums);
    }
  };
  LateCopies::IsLate() ? step() : LateSteps::open.push_back(step);
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#undef HEARTH_TEN
#undef HEARTH_LIST32
#undef HEARTH_SIXTY
#undef HEARTH_LIST64
#undef HEARTH_NINETY
#undef HEARTH_LIST96
#undef HEARTH_LIST128
#undef HEARTH_R4
#undef HEARTH_R16
#undef HEARTH_R32
#undef HEARTH_WGMMA
#endif

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_WARPGROUP_INSTRUCTIONS_H_
