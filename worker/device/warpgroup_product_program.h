// WarpgroupProductProgram: matrix product of many rows in the arithmetic kBFloat16, with the bits
// of Bf16ProductProgram, for GPUs of compute capability 9.0 (Device::has_warpgroups). A thread
// block computes 128 rows x kColumns columns: each of its two warpgroups 64 rows. Both operands
// pass through a ring buffer of kDepth stages in shared memory; while wgmma computes a stage, the
// copies of the next kDepth - 2 stages are in progress.
//
// The program reads rows that PackRowsProgram has rounded and packed. The product of a matrix pair
// writes packed rows, so that the next product reads them without another pass.
#ifndef HEARTH_WORKER_DEVICE_WARPGROUP_PRODUCT_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_WARPGROUP_PRODUCT_PROGRAM_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/device/product_program.h"
#include "worker/device/warpgroup_instructions.h"

namespace hearth {

// Rows rounded to bfloat16: [inputs / 8][pitch][8], as the columns of a DeviceMatrix. `pitch`: a
// multiple of kGrain. Rows past the last row may be read; their values are unused.
struct Bf16Rows {
  static constexpr int kGrain = 128;
  uint16_t* data;
  int pitch;
};

// Rounds and packs rows. A thread block packs kRows rows x kColumns columns.
struct PackRowsProgram {
  static constexpr int kWarps = 8, kRows = 32, kColumns = kWarps * 8;
  struct Shared {};

  const float* x;  // [rows][x_stride]
  Bf16Rows to;
  int rows, columns, x_stride;  // columns: a multiple of 8

  static int Blocks(int rows, int columns) {
    return (rows + kRows - 1) / kRows * ((columns + kColumns - 1) / kColumns);
  }

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const int row_blocks = (rows + kRows - 1) / kRows;
    WaitForEarlier();
    AllowNextLaunch();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int row = block.number % row_blocks * kRows + lane;
        const int column = block.number / row_blocks * kColumns + warp * 8;
        if (row >= rows || column >= columns) continue;
        const float* from = x + static_cast<int64_t>(row) * x_stride + column;
        const Float4 low = LoadFloat4(from), high = LoadFloat4(from + 4);
        const Word4 packed = {Bf16Pair(low.v[0], low.v[1]), Bf16Pair(low.v[2], low.v[3]),
                              Bf16Pair(high.v[0], high.v[1]), Bf16Pair(high.v[2], high.v[3])};
        reinterpret_cast<Word4*>(to.data)[static_cast<int64_t>(column / 8) * to.pitch + row] =
            packed;
      }
    }
  }
};

// Arguments of a product; every WarpgroupProductProgram has this layout.
struct WarpgroupArguments {
  static constexpr int kInputGrain = 64;
  DeviceMatrix matrix;  // inputs: a multiple of kInputGrain; outputs: a multiple of 8
  Bf16Rows x;
  Bf16Rows gated;  // the outputs of a matrix pair
  float* y;        // [rows][y_stride]: the outputs of one matrix
  int rows, y_stride;
};

// kInputs: inputs of a stage.
template <int kColumnsOf, int kInputsOf, int kDepthOf>
struct WarpgroupTiling {
  static constexpr int kRows = 128, kColumns = kColumnsOf, kInputs = kInputsOf, kDepth = kDepthOf;
};

template <class OfTiling, bool kIsGelu>
struct WarpgroupProductProgram : OfTiling, WarpgroupArguments {
  using OfTiling::kColumns;
  using OfTiling::kDepth;
  using OfTiling::kInputs;
  using OfTiling::kRows;
  static constexpr int kWarps = 8, kThreads = kWarps * 32, kGroups = kInputs / 8;
  static_assert(kDepth >= 3 && Bf16Rows::kGrain % kRows == 0 && kInputGrain % kInputs == 0);

  struct Shared {
    alignas(128) unsigned char x[kDepth][kGroups][kRows][16];
    unsigned char weights[kDepth][kGroups][kColumns][16];
  };

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
    return;
#else
    const int row_blocks = (rows + kRows - 1) / kRows, stages = matrix.inputs / kInputs;
    const int first_row = block.number % row_blocks * kRows;
    const int first_column = block.number / row_blocks * kColumns;
    PerThread<float, kColumns / 2, kWarps> sums;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kColumns / 2; ++i) sums.At(warp, lane)[i] = 0;
      }
    }
    WaitForEarlier();
    AllowNextLaunch();
    for (int stage = 0; stage < kDepth - 2; ++stage) {
      if (stage < stages) Load(shared, stage, stage, first_row, first_column);
      CommitCopies();
    }
    HEARTH_UNROLL_BY(1)
    for (int stage = 0, place = 0; stage < stages; ++stage) {
      WaitCopies<kDepth - 3>();
      ShowToWarpgroups();
      BARRIER();  // all threads see the stage; all warpgroups have computed the stage before last
      AddStage(shared, place, first_row, first_column, &sums);
      CommitSteps();
      const int next = stage + kDepth - 2, free = place < 2 ? place + kDepth - 2 : place - 2;
      if (next < stages) Load(shared, free, next, first_row, first_column);
      CommitCopies();
      WaitSteps<1>(&sums);
      place = place + 1 == kDepth ? 0 : place + 1;
    }
    WaitCopies<0>();
    WaitSteps<0>(&sums);
    Store(first_row, first_column, &sums);
#endif
  }

 private:
  HEARTH_HOST_DEVICE void Load(Shared* shared, int place, int stage, int first_row,
                               int first_column) const {
    const auto* const of_rows = reinterpret_cast<const Word4*>(x.data) + first_row;
    const auto* const of_columns = reinterpret_cast<const Word4*>(matrix.data) + first_column;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int thread = warp * 32 + lane, first_group = stage * kGroups;
        HEARTH_UNROLL
        for (int i = 0; i < kGroups * kRows / kThreads; ++i) {
          const int piece = i * kThreads + thread, group = piece / kRows, row = piece % kRows;
          Copy16(shared->x[place][group][row], of_rows + (first_group + group) * x.pitch + row);
        }
        HEARTH_UNROLL
        for (int i = 0; i < kGroups * kColumns / kThreads; ++i) {
          const int piece = i * kThreads + thread;
          const int group = piece / kColumns, column = piece % kColumns;
          Copy16(shared->weights[place][group][column],
                 of_columns + (first_group + group) * matrix.columns + column);
        }
      }
    }
  }

  template <class Sums>
  HEARTH_HOST_DEVICE void AddStage(const Shared* shared, int place, int first_row, int first_column,
                                   Sums* sums) const {
    FOR_WARPS(warp, kWarps) {
      const int first = warp / 4 * 64;  // the warpgroup's first row
      BeginSteps(sums);
      HEARTH_UNROLL
      for (int group = 0; group < kGroups; group += 2) {
        AddWarpgroupStep<kColumns>(
            shared->x[place][group][first], kRows * 16, shared->weights[place][group][0],
            kColumns * 16, rows - first_row - first, matrix.columns - first_column, warp, sums);
      }
    }
  }

  template <class Sums>
  HEARTH_HOST_DEVICE void Store(int first_row, int first_column, Sums* sums) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int g = lane / 4, t = lane % 4;
        const float* own = sums->At(warp, lane);
        HEARTH_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int row = first_row + warp * 16 + half * 8 + g;
          if (row >= rows) continue;
          HEARTH_UNROLL
          for (int n = 0; n < kColumns / 8; n += kIsGelu ? 2 : 1) {
            const float* sum = own + n * 4 + half * 2;  // sum[4], sum[5]: the next eight columns
            if constexpr (kIsGelu) {
              const int group = first_column / 16 + n / 2;
              if (group * 8 >= matrix.outputs) continue;
              uint16_t* to = gated.data + (static_cast<int64_t>(group) * gated.pitch + row) * 8;
              reinterpret_cast<uint32_t*>(to)[t] = Bf16Pair(
                  exact::Mul(exact::Gelu(sum[0]), sum[4]), exact::Mul(exact::Gelu(sum[1]), sum[5]));
            } else {
              const int output = first_column + n * 8 + 2 * t;
              if (output >= matrix.outputs) continue;
              StoreFloats<2>(y + static_cast<int64_t>(row) * y_stride + output, {{sum[0], sum[1]}});
            }
          }
        }
      }
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_WARPGROUP_PRODUCT_PROGRAM_H_
