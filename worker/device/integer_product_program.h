// Integer products on tensor cores, with the bits of worker/kernels/integer_product.h:
// rows are quantized to blocks of 32 integers (integer_matrix.h), then IntegerProductProgram
// multiplies them by quantized weights. The integer sum of a block is exact. Each output
// y[row][output] is a float32 sum that starts at +0 and adds the scaled sums in ascending order of
// the blocks, so every tiling gives the same bits.
//
// Integer sums become floats without a conversion: the matrix instruction adds to the bits of
// 1.5 * 2^n, where the last bit of a float is worth one unit of the sum, and a subtraction then
// gives the sum. With 4 bits the integers are multiplied by 16, so the unit is 1 / 16.
#ifndef HEARTH_WORKER_DEVICE_INTEGER_PRODUCT_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_INTEGER_PRODUCT_PROGRAM_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/device/integer_matrix.h"
#include "worker/device/matrix_instructions.h"
#include "worker/device/product_program.h"

namespace hearth {

// Arguments of QuantizeProgram and of every IntegerProductProgram. QuantizeProgram reads x and
// row_numbers and writes `quantized`; the product reads `quantized`.
struct IntegerArguments : ProductArguments {
  IntegerRows quantized;
  bool is_pair = false;  // whether `matrix` is a pair of matrices for the gated GELU
};

// Quantizes rows that no other program has quantized.
struct QuantizeProgram : IntegerArguments {
  static constexpr int kWarps = 8;
  struct Shared {};

  static int Blocks(int rows, int inputs) {
    const int units = rows * ((inputs + kQuantizedInputs - 1) / kQuantizedInputs);
    return (units + kWarps - 1) / kWarps;
  }

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    WaitForEarlier();
    AllowNextLaunch();
    FOR_WARPS(warp, kWarps) {
      const int unit = block.number * kWarps + warp, row = unit % rows;
      const int first = unit / rows * kQuantizedInputs;
      if (first >= matrix.inputs) continue;
      const int from = row_numbers != nullptr ? row_numbers[row] : row;
      QuantizeInputs(x + static_cast<int64_t>(from) * x_stride, matrix.inputs, first, quantized,
                     row);
    }
  }
};

// A thread block computes kRows x kColumns outputs with kRowWarps * kColumnWarps warps; a warp
// computes kRowTiles * 8 rows and kColumnTiles * 16 columns. A stage of the ring buffer holds
// kBlocks blocks of inputs.
template <int kRowTilesOf, int kRowWarpsOf, int kColumnTilesOf, int kColumnWarpsOf, int kBlocksOf,
          int kDepthOf>
struct IntegerTiling {
  static constexpr int kRowTiles = kRowTilesOf, kRowWarps = kRowWarpsOf;
  static constexpr int kColumnTiles = kColumnTilesOf, kColumnWarps = kColumnWarpsOf;
  static constexpr int kBlocks = kBlocksOf, kDepth = kDepthOf;
  static constexpr int kWarps = kRowWarps * kColumnWarps;
  static constexpr int kRows = kRowWarps * kRowTiles * 8;
  static constexpr int kTiles = kColumnWarps * kColumnTiles;  // tiles of 16 columns
  static constexpr int kColumns = kTiles * IntegerTile::kColumns;
};

template <IntegerForm kForm, class Tiles>
struct IntegerProductProgram : Tiles, IntegerArguments {
  using Tiles::kBlocks;
  using Tiles::kColumnTiles;
  using Tiles::kColumnWarps;
  using Tiles::kDepth;
  using Tiles::kRows;
  using Tiles::kRowTiles;
  using Tiles::kTiles;
  using Tiles::kWarps;
  static constexpr IntegerTile kTile = TileOf(kForm);
  static constexpr bool kHasLeast = kTile.has_least, kHasParts = kTile.has_parts;

  struct Stage {
    alignas(16) unsigned char weights[kTiles][kBlocks][kTile.bytes];
    alignas(16) unsigned char rows[kBlocks][kRows][IntegerTile::kInputs];
    alignas(16) float scales[kBlocks][kRows];
  };
  struct Shared {
    Stage stages[kDepth];
  };

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    const int row_blocks = (rows + kRows - 1) / kRows;
    const int first_row = block.number % row_blocks * kRows;
    const int first_tile = block.number / row_blocks * kTiles;
    const int blocks = IntegerBlocks(matrix.inputs);
    const int stages = (blocks + kBlocks - 1) / kBlocks;
    PerThread<float, kRowTiles * kColumnTiles * 4, kWarps> chains;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kRowTiles * kColumnTiles * 4; ++i) chains.At(warp, lane)[i] = 0;
      }
    }
    for (int stage = 0; stage < kDepth - 1; ++stage) {
      if (stage < stages) LoadWeights(&shared->stages[stage], first_tile, stage * kBlocks, blocks);
    }
    WaitForEarlier();
    AllowNextLaunch();
    for (int stage = 0; stage < kDepth - 1; ++stage) {
      if (stage < stages) LoadRows(&shared->stages[stage], first_row, stage * kBlocks, blocks);
      CommitCopies();
    }
    for (int stage = 0; stage < stages; ++stage) {
      WaitCopies<kDepth - 2>();
      BARRIER();  // all threads see the stage, and the previous stage is free
      const int next = stage + kDepth - 1;
      if (next < stages) {
        LoadWeights(&shared->stages[next % kDepth], first_tile, next * kBlocks, blocks);
        LoadRows(&shared->stages[next % kDepth], first_row, next * kBlocks, blocks);
      }
      CommitCopies();
      AddStage(shared->stages[stage % kDepth], blocks - stage * kBlocks, rows - first_row, &chains);
    }
    Store(first_row, first_tile, &chains);
  }

 private:
  static constexpr int kThreads = kWarps * 32;
  // Bits of 1.5 * 2^23 and 1.5 * 2^19, to which sums are added.
  static constexpr int32_t kWideStart = 0x4b400000;
  static constexpr int32_t kStart = kTile.is_narrow ? 0x49400000 : kWideStart;

  // Rows and columns of a warp, relative to the thread block.
  static HEARTH_HOST_DEVICE int FirstTile(int warp) { return warp % kColumnWarps * kColumnTiles; }
  static HEARTH_HOST_DEVICE int FirstRow(int warp) { return warp / kColumnWarps * kRowTiles * 8; }

  // Starts the copies of kBlocks blocks, beginning with number `first` of `blocks`.
  HEARTH_HOST_DEVICE void LoadWeights(Stage* to, int first_tile, int first, int blocks) const {
    constexpr int kPieces = kBlocks * kTile.bytes / 16;  // of a tile of columns
    const int left = (blocks - first) * (kTile.bytes / 16);
    const int tiles = matrix.columns / IntegerTile::kColumns - first_tile;
    const auto* from = reinterpret_cast<const unsigned char*>(matrix.data);
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int piece = warp * 32 + lane; piece < kTiles * kPieces; piece += kThreads) {
          const int tile = piece / kPieces, of_tile = piece % kPieces;
          if (tile >= tiles || of_tile >= left) continue;
          const int64_t at = static_cast<int64_t>(first_tile + tile) * blocks + first;
          Copy16(to->weights[tile][0] + of_tile * 16, from + at * kTile.bytes + of_tile * 16);
        }
      }
    }
  }

  HEARTH_HOST_DEVICE void LoadRows(Stage* to, int first_row, int first, int blocks) const {
    constexpr int kPieces = kRows * 2, kScalePieces = kRows / 4;  // of a block
    const int left = quantized.stride - first_row;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int piece = warp * 32 + lane; piece < kBlocks * kPieces; piece += kThreads) {
          const int block = piece / kPieces, row = piece % kPieces / 2;
          if (first + block >= blocks || row >= rows - first_row) continue;
          const int64_t at = static_cast<int64_t>(first + block) * quantized.stride + first_row;
          Copy16(to->rows[block][0] + piece % kPieces * 16,
                 quantized.ints + at * IntegerTile::kInputs + piece % kPieces * 16);
        }
        for (int piece = warp * 32 + lane; piece < kBlocks * kScalePieces; piece += kThreads) {
          const int block = piece / kScalePieces, row = piece % kScalePieces * 4;
          if (first + block >= blocks || row >= left) continue;
          const int64_t at =
              static_cast<int64_t>(first + block) * quantized.stride + first_row + row;
          Copy16(&to->scales[block][row], quantized.scales + at);
        }
      }
    }
  }

  // A block's rows in registers: integers, scales, and sums of the integers (only if kHasLeast).
  struct RowBlock {
    PerThread<uint32_t, kRowTiles * 2, kWarps> ints;
    PerThread<float, kRowTiles * 2, kWarps> scales, sums;
  };
  // A block's weights of 16 columns: integers, scales and least values of columns g and g + 8, and
  // the parts of both halves: [column][half]. If kHasParts, `ints` holds the first half of the
  // inputs and `others` the second half; the other words are 0.
  struct ColumnBlock {
    PerThread<uint32_t, 4, kWarps> ints, others;
    PerThread<float, 2, kWarps> scales, leasts;
    PerThread<float, 4, kWarps> parts;
  };

  // `left`: blocks from the stage's first block to the last block. `used`: rows from the thread
  // block's first row to the last row.
  template <class Chains>
  HEARTH_HOST_DEVICE void AddStage(const Stage& stage, int left, int used, Chains* chains) const {
    FOR_WARPS(warp, kWarps) {
      // Unrolled, the largest of these programs would need more registers than a thread has.
      HEARTH_UNROLL_BY((kHasLeast && kRowTiles * kColumnTiles >= 16 ? 1 : kBlocks))
      for (int block = 0; block < kBlocks; ++block) {
        if (block >= left) break;
        RowBlock row_block;
        FOR_LANES(lane) { LoadRowBlock(stage, block, warp, lane, &row_block); }
        if constexpr (kHasLeast) SumRows(used - FirstRow(warp), warp, &row_block);
        HEARTH_UNROLL
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          ColumnBlock columns;
          FOR_LANES(lane) {
            LoadColumnBlock(stage.weights[FirstTile(warp) + tile][block], warp, lane, &columns);
          }
          AddBlock(&row_block, &columns, tile, used - FirstRow(warp), warp, chains);
        }
      }
    }
  }

  static HEARTH_HOST_DEVICE void LoadRowBlock(const Stage& stage, int block, int warp, int lane,
                                              RowBlock* to) {
    HEARTH_UNROLL
    for (int n = 0; n < kRowTiles; ++n) {
      const int first = FirstRow(warp) + n * 8, row = first + lane % 4 * 2;
      const Word2 words = LoadWord2(stage.rows[block][first] + lane * 8);
      const Floats<2> scales = LoadFloats<2>(&stage.scales[block][row]);
      HEARTH_UNROLL
      for (int i = 0; i < 2; ++i) {
        to->ints.At(warp, lane)[2 * n + i] = words.v[i];
        to->scales.At(warp, lane)[2 * n + i] = scales.v[i];
      }
    }
  }

  // Adds the integers of each row, as a product with weights of 1.
  static HEARTH_HOST_DEVICE void SumRows(int used, int warp, RowBlock* rows) {
    PerThread<uint32_t, 4, kWarps> ones;
    FOR_LANES(lane) {
      HEARTH_UNROLL
      for (int i = 0; i < 4; ++i) ones.At(warp, lane)[i] = 0x01010101u;
    }
    PerThread<int32_t, kRowTiles * 4, kWarps> sums;
    MultiplyIntegers<true, kRowTiles>(&ones, &rows->ints, kWideStart, used, warp, &sums);
    FOR_LANES(lane) {
      HEARTH_UNROLL
      for (int i = 0; i < kRowTiles * 2; ++i) {
        rows->sums.At(warp, lane)[i] =
            FloatOfSum(sums.At(warp, lane)[i / 2 * 4 + i % 2], kWideStart);
      }
    }
  }

  static HEARTH_HOST_DEVICE void LoadColumnBlock(const unsigned char* from, int warp, int lane,
                                                 ColumnBlock* to) {
    uint32_t* ints = to->ints.At(warp, lane);
    if constexpr (kTile.is_narrow) {
      const Word2 words = LoadWord2(from + lane * 8);
      HEARTH_UNROLL
      for (int i = 0; i < 2; ++i) {
        ints[i] = words.v[i] & 0xf0f0f0f0u;
        ints[2 + i] = words.v[i] << 4 & 0xf0f0f0f0u;
      }
    } else {
      const Word4 words = LoadWord4(from + lane * 16);
      HEARTH_UNROLL
      for (int i = 0; i < 4; ++i) {
        ints[i] = kHasParts && i >= 2 ? 0 : words.v[i];
        to->others.At(warp, lane)[i] = i < 2 ? 0 : words.v[i];
      }
    }
    HEARTH_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int column = lane / 4 + 8 * i;
      to->scales.At(warp, lane)[i] = IntegerScale(kTile, from, column);
      if constexpr (kHasLeast) {
        to->leasts.At(warp, lane)[i] = reinterpret_cast<const float*>(from + kTile.leasts)[column];
      }
      HEARTH_UNROLL
      for (int half = 0; half < 2 && kHasParts; ++half) {
        to->parts.At(warp, lane)[2 * i + half] = IntegerPart(kTile, from, column, half);
      }
    }
  }

  // Adds one block to the sums of a tile of 16 columns.
  template <class Chains>
  HEARTH_HOST_DEVICE void AddBlock(RowBlock* row_block, ColumnBlock* columns, int tile, int used,
                                   int warp, Chains* chains) const {
    PerThread<int32_t, kRowTiles * 4, kWarps> sums, others;
    MultiplyIntegers<kForm != IntegerForm::kInt4Least, kRowTiles>(&columns->ints, &row_block->ints,
                                                                  kStart, used, warp, &sums);
    if constexpr (kHasParts) {
      MultiplyIntegers<true, kRowTiles>(&columns->others, &row_block->ints, kStart, used, warp,
                                        &others);
    }
    FOR_LANES(lane) {
      float* to = chains->At(warp, lane) + tile * kRowTiles * 4;
      HEARTH_UNROLL
      for (int i = 0; i < kRowTiles * 4; ++i) {
        const int row = i / 4 * 2 + i % 2, column = i % 4 / 2;
        float sum = FloatOfSum(sums.At(warp, lane)[i], kStart);
        if constexpr (kHasParts) {
          const float* parts = columns->parts.At(warp, lane) + 2 * column;
          sum = exact::Fma(sum, parts[0],
                           exact::Mul(FloatOfSum(others.At(warp, lane)[i], kStart), parts[1]));
        }
        const float d = row_block->scales.At(warp, lane)[row];
        to[i] = exact::Fma(sum, exact::Mul(d, columns->scales.At(warp, lane)[column]), to[i]);
        if constexpr (kHasLeast) {
          to[i] = exact::Fma(row_block->sums.At(warp, lane)[row],
                             exact::Mul(d, columns->leasts.At(warp, lane)[column]), to[i]);
        }
      }
    }
  }

  static HEARTH_HOST_DEVICE float FloatOfSum(int32_t sum, int32_t start) {
    return exact::Sub(exact::FloatOf(static_cast<uint32_t>(sum)),
                      exact::FloatOf(static_cast<uint32_t>(start)));
  }

  template <class Chains>
  HEARTH_HOST_DEVICE void Store(int first_row, int first_tile, Chains* chains) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          HEARTH_UNROLL
          for (int i = 0; i < kRowTiles * 2; ++i) {
            const int row = first_row + FirstRow(warp) + i / 2 * 8 + lane % 4 * 2 + i % 2;
            const int number = first_tile + FirstTile(warp) + tile;
            if (row >= rows) continue;
            float* to = y + static_cast<int64_t>(row) * y_stride;
            // outputs g and g + 8
            const float* own = chains->At(warp, lane) + (tile * kRowTiles + i / 2) * 4 + i % 2;
            if (is_pair) {
              StoreGated(to, number * 8 + lane / 4, own[0], own[2]);
            } else {
              StoreOne(to, number * 16 + lane / 4, own[0]);
              StoreOne(to, number * 16 + lane / 4 + 8, own[2]);
            }
          }
        }
      }
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_INTEGER_PRODUCT_PROGRAM_H_
