// Programs that add the products of LoRA adapters to a matrix product, in the order of LowRank
// (worker/kernels/layer.h), so the bits are the same. Each row of a step has its own adapter, or
// none (StepTable::adapters). LowRankInnerProgram computes a * x; LowRankSumProgram adds
// scale * b * (a * x).
//
// The rows are divided into tiles. A thread block computes one run of a tile: adjacent rows with
// the same adapter, which share the reads of the adapter's matrices.
#ifndef HEARTH_WORKER_DEVICE_ADAPTER_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_ADAPTER_PROGRAM_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/device/device_model.h"
#include "worker/device/step_table.h"

namespace hearth {

// The matrix pairs that one adapter adds to one product, in device memory. All pairs have the same
// rank and scale.
struct DeviceLowRank {
  // A row has `ranks` inner values: `rank` for each pair, then padding to a multiple of kGrain.
  static constexpr int kGrain = 16;

  const float* a = nullptr;  // [inputs / 4][ranks][4]
  const float* b = nullptr;  // [rank][columns]
  // [columns]: index of the first inner value of the pair that changes the column; -1: none does
  const int32_t* first_inner = nullptr;
  int rank = 0, ranks = 0;  // ranks is 0 if the adapter does not change this product
  float scale = 1;
};

struct AdapterRun {
  int first = 0, rows = 0;
  int adapter = -1;
};

// Arguments of both programs. Blocks: [tiles][runs][column_blocks].
struct LowRankArguments {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kRows = kAdapterTileRows;

  StepTable table;
  const DeviceLowRank* products;  // the products of adapter n are products[n * stride]
  int stride;
  int runs, column_blocks;  // maximum number of runs of a tile; blocks of a run
  float* inner;             // [rows][inner_stride]
  int inner_stride;

  // Returns the rows of a block. If the tile has fewer runs, the run has no rows.
  HEARTH_HOST_DEVICE AdapterRun RunOf(BlockNumber block) const {
    const int in_step = block.number / column_blocks;
    const int begin = in_step / runs * kRows, rows = *table.row_count;
    const int end = begin + kRows < rows ? begin + kRows : rows;
    int left = in_step % runs, first = begin;
    for (int row = begin + 1; row <= end; ++row) {
      const int adapter = table.adapters[first];
      if (row < end && table.adapters[row] == adapter) continue;
      if (left-- == 0) return {first, row - first, adapter};
      first = row;
    }
    return {};
  }
  // Returns the matrix pairs of an adapter; null if there are none.
  HEARTH_HOST_DEVICE const DeviceLowRank* PairsOf(const AdapterRun& run) const {
    if (run.adapter < 0) return nullptr;
    const DeviceLowRank* pairs = products + run.adapter * stride;
    return pairs->ranks > 0 ? pairs : nullptr;
  }
};

// inner[row][j] = sum over k of a[j][k] * x[row][k], as one chain for each thread. A block computes
// kColumns inner values of a run; `a` and x pass through a ring buffer in shared memory.
struct LowRankInnerProgram : LowRankArguments {
  static constexpr int kColumns = DeviceLowRank::kGrain;
  static constexpr int kGroups = 16, kDepth = 6;  // groups of four inputs of a stage; stages
  static_assert(kRows * kColumns == kThreads, "one sum for each thread");
  struct Shared {
    alignas(16) float a[kDepth][kGroups][kColumns][4];
    alignas(16) float x[kDepth][kRows][kGroups * 4 + 4];  // padding avoids bank conflicts
  };

  const float* x;  // [rows][inputs]
  int inputs;      // a multiple of 4

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    const AdapterRun run = RunOf(block);
    const int column = block.number % column_blocks * kColumns;
    const DeviceLowRank* pairs = PairsOf(run);
    const int stages = (inputs / 4 + kGroups - 1) / kGroups;
    WaitForEarlier();
    AllowNextLaunch();
    if (pairs == nullptr || column >= pairs->ranks) return;
    PerThread<float, 1, kWarps> sums;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) { sums.At(warp, lane)[0] = 0; }
    }
    for (int stage = 0; stage < kDepth - 1; ++stage) {
      if (stage < stages) Load(shared, stage, run, *pairs, column);
      CommitCopies();
    }
    for (int stage = 0; stage < stages; ++stage) {
      WaitCopies<kDepth - 2>();
      BARRIER();  // all threads see the stage, and the previous stage is free
      if (stage + kDepth - 1 < stages) Load(shared, stage + kDepth - 1, run, *pairs, column);
      CommitCopies();
      AddStage(shared, stage, run, &sums);
    }
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int row = (warp * 32 + lane) / kColumns, at = (warp * 32 + lane) % kColumns;
        if (row >= run.rows) continue;
        inner[int64_t{run.first + row} * inner_stride + column + at] = sums.At(warp, lane)[0];
      }
    }
  }

 private:
  HEARTH_HOST_DEVICE int GroupsOf(int stage) const {
    const int left = inputs / 4 - stage * kGroups;
    return left < kGroups ? left : kGroups;
  }

  HEARTH_HOST_DEVICE void Load(Shared* shared, int stage, const AdapterRun& run,
                               const DeviceLowRank& pairs, int column) const {
    const int groups = GroupsOf(stage), first = stage * kGroups, place = stage % kDepth;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int thread = warp * 32 + lane;
        for (int piece = thread; piece < groups * kColumns; piece += kThreads) {
          const int group = piece / kColumns, at = piece % kColumns;
          Copy16(shared->a[place][group][at],
                 pairs.a + (int64_t{first + group} * pairs.ranks + column + at) * 4);
        }
        for (int piece = thread; piece < run.rows * kGroups; piece += kThreads) {
          const int row = piece / kGroups, group = piece % kGroups;
          if (group >= groups) continue;
          Copy16(&shared->x[place][row][group * 4],
                 x + int64_t{run.first + row} * inputs + (first + group) * 4);
        }
      }
    }
  }

  template <class Sums>
  HEARTH_HOST_DEVICE void AddStage(const Shared* shared, int stage, const AdapterRun& run,
                                   Sums* sums) const {
    const int groups = GroupsOf(stage), place = stage % kDepth;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int row = (warp * 32 + lane) / kColumns, at = (warp * 32 + lane) % kColumns;
        if (row >= run.rows) continue;
        float sum = sums->At(warp, lane)[0];
        HEARTH_UNROLL_BY(8)
        for (int group = 0; group < groups; ++group) {
          const Float4 a = LoadFloat4(shared->a[place][group][at]);
          const Float4 of_row = LoadFloat4(&shared->x[place][row][group * 4]);
          HEARTH_UNROLL
          for (int i = 0; i < 4; ++i) sum = exact::Fma(of_row.v[i], a.v[i], sum);
        }
        sums->At(warp, lane)[0] = sum;
      }
    }
  }
};

// Adds scale * sum over j of b[column][j] * inner[row][j] to sums[row][column]. If kIsGelu, sums
// are the products of a matrix pair (DeviceMatrix); each row of the step, with or without an
// adapter, then gives gated[row][output] = Gelu(gate) * up.
template <bool kIsGelu>
struct LowRankSumProgram : LowRankArguments {
  struct Shared {};

  int outputs, columns;  // for a pair: outputs of each matrix; columns of both
  float* sums;           // [rows][columns]
  float* gated;          // [rows][outputs]; null if not kIsGelu

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const AdapterRun run = RunOf(block);
    const DeviceLowRank* pairs = PairsOf(run);
    WaitForEarlier();
    AllowNextLaunch();
    if (!kIsGelu && pairs == nullptr) return;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int output = block.number % column_blocks * kThreads + warp * 32 + lane;
        if (output >= outputs) continue;
        float values[kRows], ups[kRows];
        Load(run, pairs, kIsGelu ? PairColumn(output, false) : output, values);
        if (kIsGelu) Load(run, pairs, PairColumn(output, true), ups);
        HEARTH_UNROLL
        for (int r = 0; r < kRows; ++r) {
          if (r >= run.rows) continue;
          if constexpr (kIsGelu) {
            gated[int64_t{run.first + r} * outputs + output] =
                exact::Mul(exact::Gelu(values[r]), ups[r]);
          } else {
            sums[int64_t{run.first + r} * columns + output] = values[r];
          }
        }
      }
    }
  }

 private:
  // Loads a column's sums of a run's rows, and adds the adapter's products.
  HEARTH_HOST_DEVICE void Load(const AdapterRun& run, const DeviceLowRank* pairs, int column,
                               float* values) const {
    HEARTH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      values[r] = r < run.rows ? sums[int64_t{run.first + r} * columns + column] : 0;
    }
    const int first = pairs == nullptr ? -1 : pairs->first_inner[column];
    if (first < 0) return;
    const float* b = pairs->b + column;
    const float* of_run = inner + int64_t{run.first} * inner_stride + first;
    float low[kRows] = {};
    HEARTH_UNROLL_BY(4)
    for (int j = 0; j < pairs->rank; ++j) {
      const float weight = b[int64_t{j} * columns];
      HEARTH_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (r < run.rows) low[r] = exact::Fma(of_run[r * inner_stride + j], weight, low[r]);
      }
    }
    HEARTH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      values[r] = exact::Add(values[r], exact::Mul(pairs->scale, low[r]));
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_ADAPTER_PROGRAM_H_
