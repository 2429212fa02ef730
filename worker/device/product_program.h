// ProductProgram: GPU matrix product with bfloat16 weights. Each output y[row][output] is a float32
// sum that starts at +0 and adds the inputs in ascending order, one FMA each. This is the order of
// worker/kernels/product.h, so every tile shape gives the same bits.
//
// A thread block computes kRows x kColumns outputs; a thread accumulates kRowsEach x kColumnsEach
// of them. Weights and rows pass through a ring buffer of kDepth stages in shared memory.
// If kLoadWarps is not 0, additional warps only start the copies. A thread with few sums also loads
// the next kAhead groups of inputs into registers, so that its FMAs do not wait for loads from
// shared memory.
#ifndef HEARTH_WORKER_DEVICE_PRODUCT_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_PRODUCT_PROGRAM_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/device/integer_matrix.h"

namespace hearth {

// A weight matrix in device memory: quantized (integer_matrix.h), or in bfloat16 with the shape
// [inputs / 8][columns][8]. Each column holds the weights of one output; the columns are padded
// with zeros to a multiple of kColumnGrain. In a matrix pair (gate and up), 8 columns of the first
// matrix alternate with the same 8 columns of the second, so that one thread has both inputs of the
// gated GELU.
struct DeviceMatrix {
  // inputs of a group; also the columns of a run in a pair
  static constexpr int kColumnGrain = 64, kGroup = 8;
  // Columns after the last column that may be read (of one input group); their values are unused.
  static constexpr int kSlackColumns = 512;

  const uint16_t* data = nullptr;
  int inputs = 0, columns = 0;
  int outputs = 0;  // number of outputs; for a pair of matrices, of each matrix
  IntegerForm form = IntegerForm::kNone;  // kNone: bfloat16
};

// Arguments of a product; every instance of ProductProgram and Bf16ProductProgram has this layout.
struct ProductArguments {
  DeviceMatrix matrix;
  const float* x;              // [..][x_stride]
  const int32_t* row_numbers;  // indices of the rows of x to use; null: the first `rows` rows
  float* y;                    // [rows][y_stride]
  int rows, x_stride, y_stride;
  float softcap;  // 0: no softcap

  // Writes an output of a matrix, or of a matrix pair, to its row of y. Padding is not written.
  HEARTH_HOST_DEVICE void StoreOne(float* to, int output, float sum) const {
    if (output >= matrix.outputs) return;
    to[output] = softcap > 0 ? exact::Mul(exact::Tanh(exact::Div(sum, softcap)), softcap) : sum;
  }
  HEARTH_HOST_DEVICE void StoreGated(float* to, int output, float gate, float up) const {
    if (output < matrix.outputs) to[output] = exact::Mul(exact::Gelu(gate), up);
  }
};

// kRowLanes lanes of a warp compute different rows; the remaining lanes compute different columns.
template <int kRowLanesOf, int kRowsEachOf, int kColumnsEachOf, int kRowWarpsOf, int kColumnWarpsOf,
          int kInputsOf, int kDepthOf, int kLoadWarpsOf = 0>
struct ProductTiling {
  static constexpr int kRowLanes = kRowLanesOf, kColumnLanes = 32 / kRowLanes;
  static constexpr int kRowsEach = kRowsEachOf, kColumnsEach = kColumnsEachOf;
  static constexpr int kRowWarps = kRowWarpsOf, kColumnWarps = kColumnWarpsOf;
  // inputs of a pipeline stage; number of stages
  static constexpr int kInputs = kInputsOf, kDepth = kDepthOf;
  static constexpr int kLoadWarps = kLoadWarpsOf;
  static constexpr int kRows = kRowWarps * kRowLanes * kRowsEach;
  static constexpr int kColumns = kColumnWarps * kColumnLanes * kColumnsEach;
};

template <class Tiling, bool kIsGelu>
struct ProductProgram : Tiling, ProductArguments {
  using Tiling::kColumnLanes;
  using Tiling::kColumns;
  using Tiling::kColumnsEach;
  using Tiling::kColumnWarps;
  using Tiling::kDepth;
  using Tiling::kInputs;
  using Tiling::kRowLanes;
  using Tiling::kRows;
  using Tiling::kRowsEach;
  static constexpr int kChainWarps = Tiling::kRowWarps * kColumnWarps;
  static constexpr int kWarps = kChainWarps + Tiling::kLoadWarps;
  // Warps that start copies: the additional load warps, or all warps if there are none.
  static constexpr int kCopyWarps = Tiling::kLoadWarps > 0 ? Tiling::kLoadWarps : kWarps;
  static constexpr int kFirstCopyWarp = kWarps - kCopyWarps, kThreads = kCopyWarps * 32;
  static constexpr int kGroups = kInputs / DeviceMatrix::kGroup;
  static constexpr int kAhead = Tiling::kLoadWarps > 0 && kRowsEach* kColumnsEach <= 4 ? 2 : 0;
  static_assert(kAhead == 0 || (kGroups % kAhead == 0 && kDepth > 2), "groups ahead");
  // in floats; the 4 padding floats avoid bank conflicts between rows
  static constexpr int kPitch = kInputs + 4;
  static_assert(!kIsGelu || (kColumnLanes % 8 == 0 && kColumnsEach % 2 == 0), "pairs");

  struct Shared {
    alignas(16) unsigned char weights[kDepth][kGroups][kColumns][16];
    alignas(16) float x[kDepth][kRows][kPitch];
  };

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    const int row_blocks = (rows + kRows - 1) / kRows;
    const int first_row = block.number % row_blocks * kRows;
    const int first_column = block.number / row_blocks * kColumns;
    const int steps = (matrix.inputs + kInputs - 1) / kInputs;
    PerThread<float, kRowsEach * kColumnsEach, kWarps> sums;
    PerThread<Group, kAhead == 0 ? 1 : kAhead, kWarps> ahead;
    Sources sources;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kRowsEach * kColumnsEach; ++i) sums.At(warp, lane)[i] = 0;
        const int thread = (warp - kFirstCopyWarp) * 32 + lane;
        sources.weights.At(warp, lane)[0] =
            reinterpret_cast<const unsigned char*>(matrix.data) +
            (static_cast<int64_t>(thread / kColumns) * matrix.columns + first_column +
             thread % kColumns) *
                16;
      }
    }
    for (int step = 0; step < kDepth - 1; ++step) {
      if (step < steps) LoadWeights(shared, step, step, &sources);
    }
    WaitForEarlier();
    AllowNextLaunch();
    FindRows(first_row, &sources);
    for (int step = 0; step < kDepth - 1; ++step) {
      if (step < steps) LoadRows(shared, step, step, &sources);
      CommitCopies();
    }
    for (int step = 0, stage = 0; step < steps; ++step) {
      WaitCopies<kDepth - (kAhead > 0 ? 3 : 2)>();
      BARRIER();  // all threads see the stage (if kAhead > 0, the next too); the previous is free
      const int next = step + kDepth - 1, free = stage == 0 ? kDepth - 1 : stage - 1;
      if (next < steps) {
        LoadWeights(shared, free, next, &sources);
        LoadRows(shared, free, next, &sources);
      }
      CommitCopies();
      const int after = stage + 1 == kDepth ? 0 : stage + 1;
      if constexpr (kAhead > 0) {
        if (step == 0) LoadAhead(shared, stage, &ahead);
      }
      AddStage(shared, stage, after, matrix.inputs - step * kInputs, &sums, &ahead);
      stage = after;
    }
    Store(first_row, first_column, &sums);
  }

 private:
  static constexpr int kWeightPieces = kGroups * kColumns, kOfRow = kInputs / 4;
  static constexpr int kRowPieces = kRows * kOfRow;
  static constexpr int kRowPiecesEach = (kRowPieces + kThreads - 1) / kThreads;
  static_assert(kWeightPieces % kThreads == 0 &&
                    (kThreads % kColumns == 0 || kColumns % kThreads == 0),
                "a thread's pieces lie at fixed distances");

  // A thread's weights and inputs for the next eight FMAs of each of its sums.
  struct Group {
    Word4 weights[kColumnsEach];
    Float4 x[2][kRowsEach];
  };

  // Source addresses of a thread's 16-byte copies for the next stage.
  struct Sources {
    PerThread<const unsigned char*, 1, kWarps> weights;
    PerThread<int, kRowPiecesEach, kWarps> rows;  // offsets from x in the first stage, in floats
  };

  // Threads for rows after the last row load the last row, so that they read valid memory.
  HEARTH_HOST_DEVICE void FindRows(int first, Sources* sources) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kRowPiecesEach && warp >= kFirstCopyWarp; ++i) {
          const int piece = i * kThreads + (warp - kFirstCopyWarp) * 32 + lane;
          int row = first + piece / kOfRow;
          row = row < rows ? row : rows - 1;
          if (row_numbers != nullptr) row = row_numbers[row];
          sources->rows.At(warp, lane)[i] = row * x_stride + piece % kOfRow * 4;
        }
      }
    }
  }

  // Loads past the last column read the slack (DeviceMatrix::kSlackColumns), which is valid memory.
  HEARTH_HOST_DEVICE void LoadWeights(Shared* shared, int stage, int step, Sources* sources) const {
    const int64_t group_bytes = static_cast<int64_t>(matrix.columns) * 16;
    const int groups = matrix.inputs / DeviceMatrix::kGroup - step * kGroups;
    FOR_WARPS(warp, kWarps) {
      if (warp < kFirstCopyWarp) continue;
      FOR_LANES(lane) {
        const int thread = (warp - kFirstCopyWarp) * 32 + lane;
        const unsigned char* from = sources->weights.At(warp, lane)[0];
        unsigned char* to = shared->weights[stage][0][0] + thread * 16;
        sources->weights.At(warp, lane)[0] = from + kGroups * group_bytes;
        if (groups >= kGroups) {
          HEARTH_UNROLL
          for (int piece = 0; piece < kWeightPieces; piece += kThreads) {
            Copy16(to + piece * 16, from + piece % kColumns * 16);
            if ((piece + kThreads) % kColumns == 0 || kThreads > kColumns) {
              from += (kThreads > kColumns ? kThreads / kColumns : 1) * group_bytes;
            }
          }
        } else {
          for (int piece = thread; piece < groups * kColumns; piece += kThreads) {
            Copy16(shared->weights[stage][0][0] + piece * 16,
                   from + (piece / kColumns - thread / kColumns) * group_bytes +
                       (piece % kColumns - thread % kColumns) * 16);
          }
        }
      }
    }
  }

  HEARTH_HOST_DEVICE void LoadRows(Shared* shared, int stage, int step, Sources* sources) const {
    const float* of_step = x + step * kInputs;
    const int inputs = matrix.inputs - step * kInputs;
    FOR_WARPS(warp, kWarps) {
      if (warp < kFirstCopyWarp) continue;
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kRowPiecesEach; ++i) {
          const int piece = i * kThreads + (warp - kFirstCopyWarp) * 32 + lane;
          if (kRowPieces % kThreads != 0 && piece >= kRowPieces) continue;
          if (inputs < kInputs && piece % kOfRow * 4 >= inputs) continue;
          Copy16(&shared->x[stage][piece / kOfRow][piece % kOfRow * 4],
                 of_step + sources->rows.At(warp, lane)[i]);
        }
      }
    }
  }

  template <class Ahead>
  HEARTH_HOST_DEVICE void LoadAhead(const Shared* shared, int stage, Ahead* ahead) const {
    FOR_WARPS(warp, kWarps) {
      if (warp >= kChainWarps) continue;
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kAhead; ++i) {
          LoadGroup(shared, stage, i, warp, lane, &ahead->At(warp, lane)[i]);
        }
      }
    }
  }

  // `inputs`: number of inputs from the stage's first input to the last input of the matrix.
  // `after`: index of the next stage in the ring buffer.
  template <class Sums, class Ahead>
  HEARTH_HOST_DEVICE void AddStage(const Shared* shared, int stage, int after, int inputs,
                                   Sums* sums, Ahead* ahead) const {
    FOR_WARPS(warp, kWarps) {
      if (warp >= kChainWarps) continue;
      FOR_LANES(lane) {
        float* own = sums->At(warp, lane);
        if (inputs < kInputs) {
          for (int group = 0; group * DeviceMatrix::kGroup < inputs; ++group) {
            AddGroup(shared, stage, group, warp, lane, own);
          }
        } else if constexpr (kAhead > 0) {
          AddLoadingAhead(shared, stage, inputs > kInputs ? after : stage, warp, lane,
                          ahead->At(warp, lane), own);
        } else {
          HEARTH_UNROLL_BY((kRowsEach * kColumnsEach >= 32 ? 1 : kGroups < 16 ? kGroups : 16))
          for (int group = 0; group < kGroups; ++group) {
            AddGroup(shared, stage, group, warp, lane, own);
          }
        }
      }
    }
  }

  HEARTH_HOST_DEVICE void AddLoadingAhead(const Shared* shared, int stage, int after, int warp,
                                          int lane, Group* ahead, float* sums) const {
    constexpr int kTurns = kGroups / kAhead;
    HEARTH_UNROLL_BY((kTurns < 8 ? kTurns : 8))
    for (int turn = 0; turn < kTurns; ++turn) {
      HEARTH_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const Group now = ahead[i];
        const bool is_last = turn + 1 == kTurns;
        LoadGroup(shared, is_last ? after : stage, is_last ? i : (turn + 1) * kAhead + i, warp,
                  lane, &ahead[i]);
        HEARTH_UNROLL
        for (int half = 0; half < 2; ++half) AddHalf(now.weights, half, now.x[half], sums);
      }
    }
  }

  // Adds eight inputs to each sum of the thread.
  HEARTH_HOST_DEVICE void AddGroup(const Shared* shared, int stage, int group, int warp, int lane,
                                   float* sums) const {
    Word4 weights[kColumnsEach];
    LoadWeightsOf(shared, stage, group, warp, lane, weights);
    HEARTH_UNROLL
    for (int half = 0; half < 2; ++half) {
      Float4 x_rows[kRowsEach];
      LoadRowsOf(shared, stage, group, half, warp, lane, x_rows);
      AddHalf(weights, half, x_rows, sums);
    }
  }

  HEARTH_HOST_DEVICE void LoadGroup(const Shared* shared, int stage, int group, int warp, int lane,
                                    Group* to) const {
    LoadWeightsOf(shared, stage, group, warp, lane, to->weights);
    HEARTH_UNROLL
    for (int half = 0; half < 2; ++half) {
      LoadRowsOf(shared, stage, group, half, warp, lane, to->x[half]);
    }
  }
  HEARTH_HOST_DEVICE void LoadWeightsOf(const Shared* shared, int stage, int group, int warp,
                                        int lane, Word4* to) const {
    HEARTH_UNROLL
    for (int c = 0; c < kColumnsEach; ++c) {
      to[c] = LoadWord4(shared->weights[stage][group][Column(warp, lane, c)]);
    }
  }
  HEARTH_HOST_DEVICE void LoadRowsOf(const Shared* shared, int stage, int group, int half, int warp,
                                     int lane, Float4* to) const {
    const float* from = shared->x[stage][FirstRow(warp, lane)] + group * DeviceMatrix::kGroup;
    HEARTH_UNROLL
    for (int r = 0; r < kRowsEach; ++r) {
      to[r] = LoadFloat4(from + r * kRowLanes * kPitch + half * 4);
    }
  }

  // Adds four inputs to each sum of the thread.
  HEARTH_HOST_DEVICE void AddHalf(const Word4* weights, int half, const Float4* x_rows,
                                  float* sums) const {
    HEARTH_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEARTH_UNROLL
      for (int c = 0; c < kColumnsEach; ++c) {
        const uint32_t pair = weights[c].v[half * 2 + i / 2];
        const float weight = exact::FloatOf(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
        HEARTH_UNROLL
        for (int r = 0; r < kRowsEach; ++r) {
          float& sum = sums[r * kColumnsEach + c];
          sum = exact::Fma(x_rows[r].v[i], weight, sum);
        }
      }
    }
  }

  template <class Sums>
  HEARTH_HOST_DEVICE void Store(int first_row, int first_column, Sums* sums) const {
    FOR_WARPS(warp, kWarps) {
      if (warp >= kChainWarps) continue;
      FOR_LANES(lane) {
        const float* own = sums->At(warp, lane);
        HEARTH_UNROLL
        for (int r = 0; r < kRowsEach; ++r) {
          const int row = first_row + FirstRow(warp, lane) + r * kRowLanes;
          if (row >= rows) continue;
          float* to = y + static_cast<int64_t>(row) * y_stride;
          HEARTH_UNROLL
          for (int c = 0; c < kColumnsEach; c += kIsGelu ? 2 : 1) {
            const int column = first_column + Column(warp, lane, c);
            const float sum = own[r * kColumnsEach + c];
            if constexpr (kIsGelu) {
              StoreGated(to, column / 16 * 8 + column % 8, sum, own[r * kColumnsEach + c + 1]);
            } else {
              StoreOne(to, column, sum);
            }
          }
        }
      }
    }
  }

  // FirstRow: the first of a thread's rows, relative to the block; its rows are kRowLanes apart.
  // Column: the thread's column number c, relative to the block.
  static HEARTH_HOST_DEVICE int FirstRow(int warp, int lane) {
    return warp / kColumnWarps * (kRowLanes * kRowsEach) + lane / kColumnLanes;
  }
  static HEARTH_HOST_DEVICE int Column(int warp, int lane, int c) {
    const int first = warp % kColumnWarps * (kColumnLanes * kColumnsEach);
    const int in_warp = lane % kColumnLanes;
    if constexpr (!kIsGelu) return first + c * kColumnLanes + in_warp;
    const int pair = c / 2 * kColumnLanes + in_warp;
    return first + pair / 8 * 16 + c % 2 * 8 + pair % 8;
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PRODUCT_PROGRAM_H_
