// Bf16AttendProgram: GPU attention on tensor cores, in the arithmetic kBFloat16. The order of
// operations is that of worker/kernels/fused_attend.h, so the bits are the same for each tile
// shape. Keys and values are bfloat16, and values are finite.
//
// A thread block computes a tile of query rows for one KV head, one split after the other:
//   1. scores: each warp multiplies 16 keys by some rows; the scores stay in registers
//   2. weights: the largest score of each row goes through shared memory; the weights are written
//      to shared memory in bfloat16
//   3. outputs: each warp multiplies 16 columns of the values by the weights of all rows
// Keys and values pass through a ring buffer in shared memory: the copies of the next keys or
// values run during each of these products, also from one split to the next.
#ifndef HEARTH_WORKER_DEVICE_BF16_ATTEND_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_BF16_ATTEND_PROGRAM_H_

#include <cstdint>

#include "worker/device/attend_programs.h"
#include "worker/device/block_program.h"
#include "worker/device/matrix_instructions.h"

namespace hearth {

// kTileRows: maximum rows of an item: 8 or 16 for decoding, more for prefill.
template <int kTileRows>
struct Bf16AttendProgram : AttendArguments {
  static constexpr bool kIsFew = kTileRows <= 16;
  static constexpr int kWarps = kIsFew ? 4 : 8, kThreads = kWarps * 32;
  // ring buffer: keys (or values) of one pass; number of passes that it holds
  static constexpr int kPassKeys = kIsFew ? 64 : 128, kDepth = 2, kPasses = kSplitMax / kPassKeys;
  // All row tiles have 8 rows, and all key and column tiles 16 keys or columns.
  static constexpr int kAllRowTiles = kTileRows / 8, kRowParts = kIsFew ? 1 : 2;
  static constexpr int kKeyParts = kWarps / kRowParts;
  // tiles of a warp: for the scores of a pass; for the outputs
  static constexpr int kRowTiles = kAllRowTiles / kRowParts, kKeyTiles = kPassKeys / 16 / kKeyParts;
  static constexpr int kColumnTiles = kHeadDimMax / 16 / kWarps;

  // Rows of keys, values, queries or weights. The 16-byte pieces of row r lie in the order piece ^
  // (r % 8), so that eight rows of a matrix lie in different banks.
  using Line = uint16_t[kHeadDimMax];
  static_assert(kSplitMax == kHeadDimMax, "weights lie in lines too");
  struct Shared {
    alignas(16) Line ring[kDepth][kPassKeys];
    alignas(16) Line queries[kTileRows], weights[kTileRows];
    float largest[kKeyParts][kTileRows];
    RunningSum running[kTileRows];
    Seen seen[2][kTileRows];  // of even and odd splits, relative to the first key of the passes
  };

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    ForEachItem(block, [&](const AttendItem& item, int number, int kv_head) {
      RunItem(shared, item, number, kv_head);
    });
  }

 private:
  template <int kTiles>
  using Words = PerThread<uint32_t, kTiles == 1 ? 4 : kTiles * 2, kWarps>;
  using Scores = PerThread<float, kPasses * kKeyTiles * kRowTiles * 4, kWarps>;
  using Outputs = PerThread<float, kColumnTiles * kAllRowTiles * 4, kWarps>;

  // The keys of a split that the passes cover: [first, first + count) of the split, in whole groups
  // of 16. `any`: keys that at least one row attends to.
  struct Span {
    int first, count, passes;
    Seen any;
  };
  // The next keys or values to copy: of the item's split number `split`, `part` counts the passes
  // of its keys, then those of its values.
  struct Cursor {
    int split, part;
  };

  HEARTH_HOST_DEVICE Span SpanOf(const AttendItem& item, int i) const {
    const int split = item.first_split + i;
    const Seen any = {SeenAt(item.position, split).begin,
                      SeenAt(item.position + item.tokens - 1, split).end};
    const int first = any.begin / 16 * 16, count = (any.end - first + 15) / 16 * 16;
    return {first, count, (count + kPassKeys - 1) / kPassKeys, any};
  }
  template <class AnyLine>
  static HEARTH_HOST_DEVICE AnyLine* PieceOf(AnyLine (*lines)[kHeadDimMax], int row, int piece) {
    return lines[row] + (piece ^ row % 8) * 8;
  }

  HEARTH_HOST_DEVICE void RunItem(Shared* shared, const AttendItem& item, int number,
                                  int kv_head) const {
    Outputs all, one;
    Cursor next = {0, 0};
    int slot = 0;
    Begin(shared, item, kv_head, &all);
    for (int i = 0; i < kDepth - 1; ++i) LoadNext(shared, item, kv_head, i, &next);
    const auto take = [&] {  // waits for the next pass; returns its place in the ring buffer
      WaitCopies<kDepth - 2>();
      BARRIER();  // all threads see the pass, and the previous pass is free
      LoadNext(shared, item, kv_head, (slot + kDepth - 1) % kDepth, &next);
      const int taken = slot;
      slot = (slot + 1) % kDepth;
      return taken;
    };
    const int rows = item.tokens * place.sharers;
    for (int i = 0; i < item.splits; ++i) {
      const Span span = SpanOf(item, i);
      Scores scores;
      FindSeen(shared, item, i, span, &scores);
      HEARTH_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) {
        if (pass >= span.passes) break;
        AddScores(shared, shared->ring[take()], pass, span, rows, &scores);
      }
      FindLargest(shared, i, &scores);
      BARRIER();
      Weigh(shared, span, &scores);
      for (int pass = 0; pass < span.passes; ++pass) {
        const int taken = take();
        if (pass == 0) SumWeights(shared, item, number, kv_head, i, span, &one);
        AddValues(shared, shared->ring[taken], pass, span, rows, &one);
      }
      BARRIER();
      Keep(shared, item, number, kv_head, i, &one, &all);
    }
    WaitCopies<0>();
    if (item.is_whole) Finish(shared, item, kv_head, &all);
  }

  // Rounds the queries to bfloat16, and clears the running result.
  HEARTH_HOST_DEVICE void Begin(Shared* shared, const AttendItem& item, int kv_head,
                                Outputs* all) const {
    const int rows = item.tokens * place.sharers, dim = place.head_dim;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kColumnTiles * kAllRowTiles * 4; ++i) all->At(warp, lane)[i] = 0;
        for (int row = warp; row < kTileRows; row += kWarps) {
          if (lane == 0) shared->running[row] = {-kInfinity, 0, 0, 0};
          if (lane * 8 >= dim) continue;
          Word4 words = {};
          if (row < rows) {
            const float* from =
                qkv + QueryAt(item, row, kv_head, (place.heads + 2 * place.kv_heads) * dim);
            const Floats<4> low = LoadFloats<4>(from + lane * 8);
            const Floats<4> high = LoadFloats<4>(from + lane * 8 + 4);
            words = {{Bf16Pair(low.v[0], low.v[1]), Bf16Pair(low.v[2], low.v[3]),
                      Bf16Pair(high.v[0], high.v[1]), Bf16Pair(high.v[2], high.v[3])}};
          }
          *reinterpret_cast<Word4*>(PieceOf(shared->queries, row, lane)) = words;
        }
      }
    }
  }

  // Starts the copies of the next pass to `slot` of the ring buffer, and closes their group. Keys
  // to which no row attends become zeros.
  HEARTH_HOST_DEVICE void LoadNext(Shared* shared, const AttendItem& item, int kv_head, int slot,
                                   Cursor* next) const {
    if (next->split < item.splits) {
      const Span span = SpanOf(item, next->split);
      const bool are_values = next->part >= span.passes;
      const int pass = next->part - (are_values ? span.passes : 0);
      const int64_t plane = kv_head + (are_values ? place.kv_heads : 0);
      const auto* from = reinterpret_cast<const uint16_t*>(SliceOf(item, next->split)) +
                         plane * place.split * place.head_dim;
      const int first = span.first + pass * kPassKeys, left = span.count - pass * kPassKeys;
      FOR_WARPS(warp, kWarps) {
        FOR_LANES(lane) {
          for (int key = warp; key < kPassKeys && key < left; key += kWarps) {
            if (lane * 8 >= place.head_dim) continue;
            const int at = first + key;
            uint16_t* to = PieceOf(shared->ring[slot], key, lane);
            if (at >= span.any.begin && at < span.any.end) {
              Copy16(to, from + static_cast<int64_t>(at) * place.head_dim + lane * 8);
            } else {
              *reinterpret_cast<Word4*>(to) = {};
            }
          }
        }
      }
      if (++next->part == 2 * span.passes) *next = {next->split + 1, 0};
    }
    CommitCopies();
  }

  // Finds the range of each row in split number i of the item, and clears the scores.
  HEARTH_HOST_DEVICE void FindSeen(Shared* shared, const AttendItem& item, int i, const Span& span,
                                   Scores* scores) const {
    const int rows = item.tokens * place.sharers;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int row = warp * 32 + lane;
        if (row < kTileRows) {
          const Seen seen = SeenBy(item, row, item.first_split + i);
          shared->seen[i % 2][row] =
              row < rows ? Seen{seen.begin - span.first, seen.end - span.first} : Seen{0, 0};
        }
        HEARTH_UNROLL
        for (int n = 0; n < kPasses * kKeyTiles * kRowTiles * 4; ++n) {
          scores->At(warp, lane)[n] = 0;
        }
      }
    }
  }

  // Loads the inputs [16 * step, 16 * step + 16) of kTiles * 8 lines as rows of AddMatrixStep.
  template <int kTiles>
  static HEARTH_HOST_DEVICE void LoadRows(const Line* lines, int first, int step, int warp,
                                          Words<kTiles>* to) {
    HEARTH_UNROLL
    for (int pair = 0; pair < (kTiles + 1) / 2; ++pair) {
      LoadMatrices(to, pair * 4, warp, [&](int i) {
        const int row = kTiles == 1 ? i % 8 : pair * 16 + i / 16 * 8 + i % 8;
        return PieceOf(lines, first + row, step * 2 + i / 8 % 2);
      });
    }
  }

  // Multiplies the keys of a pass by the queries. scores[((pass * kKeyTiles + tile) * kRowTiles +
  // row tile) * 4 + i]: as AddMatrixStep divides the 16 keys and 8 rows.
  HEARTH_HOST_DEVICE void AddScores(const Shared* shared, const Line* keys, int pass,
                                    const Span& span, int rows, Scores* scores) const {
    const int left = span.count - pass * kPassKeys;
    FOR_WARPS(warp, kWarps) {
      const int first_row = warp / kKeyParts * kRowTiles * 8;
      HEARTH_UNROLL_BY(2)
      for (int step = 0; step < place.head_dim / 16; ++step) {
        Words<kRowTiles> queries;
        LoadRows<kRowTiles>(shared->queries, first_row, step, warp, &queries);
        HEARTH_UNROLL
        for (int tile = 0; tile < kKeyTiles; ++tile) {
          const int key = (tile * kKeyParts + warp % kKeyParts) * 16;
          if (key >= left) continue;
          PerThread<uint32_t, 4, kWarps> of_keys;
          LoadMatrices(&of_keys, 0, warp,
                       [&](int i) { return PieceOf(keys, key + i % 16, step * 2 + i / 16); });
          AddMatrixStep<kRowTiles>(&of_keys, &queries, 0, rows - first_row, warp, scores,
                                   (pass * kKeyTiles + tile) * kRowTiles * 4);
        }
      }
    }
  }

  // Calls each(score, key, row) for each score of a lane; keys count from the first pass.
  template <class Each>
  static HEARTH_HOST_DEVICE void ForScores(int warp, int lane, int row_tile, int second,
                                           Scores* scores, const Each& each) {
    HEARTH_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      HEARTH_UNROLL
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const int key = pass * kPassKeys + (tile * kKeyParts + warp % kKeyParts) * 16 + lane / 4;
        float* four =
            scores->At(warp, lane) + ((pass * kKeyTiles + tile) * kRowTiles + row_tile) * 4;
        each(&four[second], key);
        each(&four[second + 2], key + 8);
      }
    }
  }
  // Returns the row of a lane's scores with these numbers.
  static HEARTH_HOST_DEVICE int ScoreRow(int warp, int lane, int row_tile, int second) {
    return (warp / kKeyParts * kRowTiles + row_tile) * 8 + lane % 4 * 2 + second;
  }

  // Applies the softcap, sets the scores outside a row's range to -infinity, and finds the largest
  // score of each row among the keys of each warp.
  HEARTH_HOST_DEVICE void FindLargest(Shared* shared, int i, Scores* scores) const {
    FOR_WARPS(warp, kWarps) {
      HEARTH_UNROLL
      for (int n = 0; n < kRowTiles * 2; ++n) {
        PerThread<float, 1, kWarps> most, other;
        FOR_LANES(lane) {
          const Seen seen = shared->seen[i % 2][ScoreRow(warp, lane, n / 2, n % 2)];
          float largest = -kInfinity;
          ForScores(warp, lane, n / 2, n % 2, scores, [&](float* score, int key) {
            if (key < seen.begin || key >= seen.end) {
              *score = -kInfinity;
              return;
            }
            if (softcap > 0) *score = exact::Mul(exact::Tanh(exact::Div(*score, softcap)), softcap);
            largest = exact::Max(largest, *score);
          });
          most.At(warp, lane)[0] = largest;
        }
        HEARTH_UNROLL
        for (int mask = 16; mask >= 4; mask /= 2) {
          ShuffleXor(&most, 0, mask, warp, &other, 0);
          FOR_LANES(lane) {
            float& largest = most.At(warp, lane)[0];
            largest = exact::Max(largest, other.At(warp, lane)[0]);
          }
        }
        FOR_LANES(lane) {
          if (lane < 4) {
            shared->largest[warp % kKeyParts][ScoreRow(warp, lane, n / 2, n % 2)] =
                most.At(warp, lane)[0];
          }
        }
      }
    }
  }

  static HEARTH_HOST_DEVICE float LargestOf(const Shared* shared, int row) {
    float largest = shared->largest[0][row];
    HEARTH_UNROLL
    for (int part = 1; part < kKeyParts; ++part) {
      largest = exact::Max(largest, shared->largest[part][row]);
    }
    return largest;
  }

  // Turns scores into softmax weights in bfloat16. A score of -infinity gives +0.
  HEARTH_HOST_DEVICE void Weigh(Shared* shared, const Span& span, Scores* scores) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int n = 0; n < kRowTiles * 2; ++n) {
          const int row = ScoreRow(warp, lane, n / 2, n % 2);
          const float largest = LargestOf(shared, row);
          ForScores(warp, lane, n / 2, n % 2, scores, [&](const float* score, int key) {
            if (key >= span.count) return;
            PieceOf(shared->weights, row, key / 8)[key % 8] =
                Bf16Of(exact::Exp(exact::Sub(*score, largest)));
          });
        }
      }
    }
  }

  // Sums the weights of each row in the order of TreeSum, and clears the outputs of the split.
  HEARTH_HOST_DEVICE void SumWeights(Shared* shared, const AttendItem& item, int number,
                                     int kv_head, int i, const Span& span, Outputs* one) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int n = 0; n < kColumnTiles * kAllRowTiles * 4; ++n) one->At(warp, lane)[n] = 0;
      }
      for (int two = warp * 2; two < kTileRows; two += kWarps * 2) {
        PerThread<float, 1, kWarps> sum, other;
        FOR_LANES(lane) {
          float& own = sum.At(warp, lane)[0] = 0;
          for (int key = lane % 16; key < span.count; key += 16) {
            const uint32_t bits = PieceOf(shared->weights, two + lane / 16, key / 8)[key % 8];
            own = exact::Add(own, exact::FloatOf(bits << 16));
          }
        }
        HEARTH_UNROLL
        for (int mask = 8; mask >= 1; mask /= 2) {
          ShuffleXor(&sum, 0, mask, warp, &other, 0);
          FOR_LANES(lane) {
            float& own = sum.At(warp, lane)[0];
            own = exact::Add(own, other.At(warp, lane)[0]);
          }
        }
        FOR_LANES(lane) {
          const int row = two + lane / 16;
          const Seen seen = shared->seen[i % 2][row];
          if (lane % 16 > 0 || seen.begin >= seen.end) continue;
          if (item.is_whole) {
            shared->running[row].Add(LargestOf(shared, row), sum.At(warp, lane)[0]);
          } else {
            float* to = states.scalars + 2 * SlotOf(number, kv_head, row);
            to[0] = LargestOf(shared, row);
            to[1] = sum.At(warp, lane)[0];
          }
        }
      }
    }
  }

  // Multiplies the values of a pass by the weights of all rows. Outputs: [column tile][row tile]
  // [4], as AddMatrixStep divides the 16 columns and 8 rows.
  HEARTH_HOST_DEVICE void AddValues(const Shared* shared, const Line* values, int pass,
                                    const Span& span, int rows, Outputs* one) const {
    FOR_WARPS(warp, kWarps) {
      for (int key = 0; key < kPassKeys && pass * kPassKeys + key < span.count; key += 16) {
        Words<kAllRowTiles> weights;
        LoadRows<kAllRowTiles>(shared->weights, 0, (pass * kPassKeys + key) / 16, warp, &weights);
        HEARTH_UNROLL
        for (int tile = 0; tile < kColumnTiles; ++tile) {
          const int column = (tile * kWarps + warp) * 16;
          if (column >= place.head_dim) continue;
          PerThread<uint32_t, 4, kWarps> columns;
          LoadTransposed(&columns, warp, [&](int i) {
            return PieceOf(values, key + i / 16 * 8 + i % 8, column / 8 + i / 8 % 2);
          });
          AddMatrixStep<kAllRowTiles>(&columns, &weights, 0, rows, warp, one,
                                      tile * kAllRowTiles * 4);
        }
      }
    }
  }

  // CombineProgram finds the state of a row here; the item has one token.
  HEARTH_HOST_DEVICE int64_t SlotOf(int number, int kv_head, int row) const {
    return (static_cast<int64_t>(number) * place.kv_heads + kv_head) * place.sharers + row;
  }

  // Calls each(row, column, index) for each output of a lane in a row tile.
  template <class Each>
  HEARTH_HOST_DEVICE void ForOutputs(int warp, int lane, int row_tile, int second,
                                     const Each& each) const {
    HEARTH_UNROLL
    for (int n = 0; n < kColumnTiles * 2; ++n) {
      const int column = (n / 2 * kWarps + warp) * 16 + n % 2 * 8 + lane / 4;
      if (column >= place.head_dim) continue;
      each(column, (n / 2 * kAllRowTiles + row_tile) * 4 + n % 2 * 2 + second);
    }
  }

  // Merges a split's result into the running result, or writes it for CombineProgram.
  HEARTH_HOST_DEVICE void Keep(const Shared* shared, const AttendItem& item, int number,
                               int kv_head, int i, Outputs* one, Outputs* all) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int n = 0; n < kAllRowTiles * 2; ++n) {
          const int row = n / 2 * 8 + lane % 4 * 2 + n % 2;
          const Seen seen = shared->seen[i % 2][row];
          if (seen.begin >= seen.end) continue;
          const RunningSum running = shared->running[row];
          ForOutputs(warp, lane, n / 2, n % 2, [&](int column, int at) {
            const float of_split = one->At(warp, lane)[at];
            float& so_far = all->At(warp, lane)[at];
            if (item.is_whole) {
              so_far = running.Output(so_far, of_split);
            } else {
              states.outputs[SlotOf(number, kv_head, row) * place.head_dim + column] = of_split;
            }
          });
        }
      }
    }
  }

  HEARTH_HOST_DEVICE void Finish(const Shared* shared, const AttendItem& item, int kv_head,
                                 Outputs* all) const {
    const int rows = item.tokens * place.sharers;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int n = 0; n < kAllRowTiles * 2; ++n) {
          const int row = n / 2 * 8 + lane % 4 * 2 + n % 2;
          if (row >= rows) continue;
          const float inverse = exact::Div(1.0f, shared->running[row].sum);
          float* to = attended + QueryAt(item, row, kv_head, place.heads * place.head_dim);
          ForOutputs(warp, lane, n / 2, n % 2, [&](int column, int at) {
            to[column] = exact::Mul(all->At(warp, lane)[at], inverse);
          });
        }
      }
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_BF16_ATTEND_PROGRAM_H_
