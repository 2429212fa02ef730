// Bf16ProductProgram: GPU matrix product on tensor cores, in the arithmetic kBFloat16
// (worker/kernels/bf16_product.h). Each row is rounded to bfloat16. Each output y[row][output] is a
// float32 sum that starts at +0 and adds 16 inputs with each k16 step, in ascending order. The bits
// do not depend on the tiling.
//
// A thread block computes kRows x 16 outputs; each warp computes kRowTiles * 8 rows. Weights pass
// through a ring buffer of kDepth stages in shared memory; rows are loaded from global memory.
#ifndef HEARTH_WORKER_DEVICE_BF16_PRODUCT_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_BF16_PRODUCT_PROGRAM_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/device/matrix_instructions.h"
#include "worker/device/product_program.h"

namespace hearth {

template <int kRowTilesOf, int kWarpsOf>
struct Bf16Tiling {
  static constexpr int kRowTiles = kRowTilesOf, kWarps = kWarpsOf;
  static constexpr int kRows = kWarps * kRowTiles * 8, kColumns = 16;
};

template <class Form, bool kIsGelu>
struct Bf16ProductProgram : Form, ProductArguments {
  using Form::kColumns;
  using Form::kRows;
  using Form::kRowTiles;
  using Form::kWarps;
  static constexpr int kInputs = 64, kDepth = 8;  // inputs of a stage; number of stages
  static constexpr int kGroups = kInputs / DeviceMatrix::kGroup, kSteps = kInputs / 16;
  static_assert(DeviceMatrix::kColumnGrain % kColumns == 0, "every column block is whole");

  struct Shared {
    alignas(16) unsigned char weights[kDepth][kGroups][kColumns][16];
  };

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    const int row_blocks = (rows + kRows - 1) / kRows;
    const int first_row = block.number % row_blocks * kRows;
    const int first_column = block.number / row_blocks * kColumns;
    const int stages = (matrix.inputs + kInputs - 1) / kInputs;
    PerThread<float, kRowTiles * 4, kWarps> sums;
    PerThread<const float*, kRowTiles, kWarps> sources;
    for (int stage = 0; stage < kDepth - 1; ++stage) {
      if (stage < stages) LoadWeights(shared, stage, stage, first_column);
      CommitCopies();
    }
    WaitForEarlier();
    AllowNextLaunch();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kRowTiles * 4; ++i) sums.At(warp, lane)[i] = 0;
        HEARTH_UNROLL
        for (int n = 0; n < kRowTiles; ++n) {
          const int row = first_row + FirstRow(warp) + n * 8 + lane / 4;
          sources.At(warp, lane)[n] = RowAt(row) + lane % 4 * 2;
        }
      }
    }
    for (int stage = 0; stage < stages; ++stage) {
      PerThread<uint32_t, kSteps * kRowTiles * 2, kWarps> inputs;
      LoadRows(stage * kInputs, first_row, &sources, &inputs);
      WaitCopies<kDepth - 2>();
      BARRIER();  // all threads see the stage, and the previous stage is free
      const int next = stage + kDepth - 1;
      if (next < stages) LoadWeights(shared, next % kDepth, next, first_column);
      CommitCopies();
      AddStage(shared, stage, rows - first_row, &inputs, &sums);
    }
    Store(first_row, first_column, &sums);
  }

 private:
  static HEARTH_HOST_DEVICE int FirstRow(int warp) { return warp * kRowTiles * 8; }

  HEARTH_HOST_DEVICE const float* RowAt(int row) const {
    if (row >= rows) row = rows - 1;
    if (row_numbers != nullptr) row = row_numbers[row];
    return x + static_cast<int64_t>(row) * x_stride;
  }

  HEARTH_HOST_DEVICE void LoadWeights(Shared* shared, int place, int stage,
                                      int first_column) const {
    const int groups = matrix.inputs / DeviceMatrix::kGroup - stage * kGroups;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int piece = warp * 32 + lane; piece < kGroups * kColumns; piece += kWarps * 32) {
          const int group = piece / kColumns, column = piece % kColumns;
          if (group >= groups) continue;
          const int64_t at = static_cast<int64_t>(stage * kGroups + group) * matrix.columns;
          Copy16(shared->weights[place][group][column],
                 matrix.data + (at + first_column + column) * DeviceMatrix::kGroup);
        }
      }
    }
  }

  // Loads and rounds the inputs [first, first + kInputs) of each row. Inputs past the last input,
  // and rows past the last row, are zero.
  template <class Sources, class Inputs>
  HEARTH_HOST_DEVICE void LoadRows(int first, int first_row, Sources* sources,
                                   Inputs* inputs) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kSteps * kRowTiles * 2; ++i) {
          const int n = i / 2 % kRowTiles, k = first + i / 2 / kRowTiles * 16 + i % 2 * 8;
          const bool is_row = first_row + FirstRow(warp) + n * 8 + lane / 4 < rows;
          uint32_t pair = 0;
          if (is_row && k < matrix.inputs) {
            const auto two = LoadFloats<2>(sources->At(warp, lane)[n] + k);
            pair = Bf16Pair(two.v[0], two.v[1]);
          }
          inputs->At(warp, lane)[i] = pair;
        }
      }
    }
  }

  // `used`: number of rows from the block's first row to the last row of the product.
  template <class Inputs, class Sums>
  HEARTH_HOST_DEVICE void AddStage(const Shared* shared, int stage, int used, Inputs* inputs,
                                   Sums* sums) const {
    const int groups = matrix.inputs / DeviceMatrix::kGroup - stage * kGroups;
    const auto& from = shared->weights[stage % kDepth];
    FOR_WARPS(warp, kWarps) {
      HEARTH_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        if (step * 2 >= groups) break;
        PerThread<uint32_t, 4, kWarps> weights;
        LoadMatrices(&weights, 0, warp, [&](int i) { return from[step * 2 + i / 16][i % 16]; });
        if (step * 2 + 1 == groups) {  // the last step has only eight inputs
          FOR_LANES(lane) { weights.At(warp, lane)[2] = weights.At(warp, lane)[3] = 0; }
        }
        AddMatrixStep<kRowTiles>(&weights, inputs, step * kRowTiles * 2, used - FirstRow(warp),
                                 warp, sums);
      }
    }
  }

  template <class Sums>
  HEARTH_HOST_DEVICE void Store(int first_row, int first_column, Sums* sums) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int n = 0; n < kRowTiles; ++n) {
          HEARTH_UNROLL
          for (int i = 0; i < 2; ++i) {
            const int row = first_row + FirstRow(warp) + n * 8 + lane % 4 * 2 + i;
            if (row >= rows) continue;
            float* to = y + static_cast<int64_t>(row) * y_stride;
            const float* own = sums->At(warp, lane) + n * 4 + i;  // outputs g and g + 8
            if constexpr (kIsGelu) {
              StoreGated(to, first_column / 2 + lane / 4, own[0], own[2]);
            } else {
              StoreOne(to, first_column + lane / 4, own[0]);
              StoreOne(to, first_column + lane / 4 + 8, own[2]);
            }
          }
        }
      }
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_BF16_PRODUCT_PROGRAM_H_
