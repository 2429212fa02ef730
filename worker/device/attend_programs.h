// GPU programs for attention over keys and values in KV blocks. AttendProgram computes the
// attention of query rows over splits of the keys (a split is the tokens of one KV block).
// CombineProgram adds the softmax states of splits that AttendProgram computed separately. The
// order of operations is that of worker/kernels/attend.h, so the bits are the same.
#ifndef HEARTH_WORKER_DEVICE_ATTEND_PROGRAMS_H_
#define HEARTH_WORKER_DEVICE_ATTEND_PROGRAMS_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/device/integer_matrix.h"
#include "worker/device/step_table.h"

namespace hearth {

// Online-softmax state of each query row over the keys of one split: [slot of the split][row].
struct SplitStates {
  float* scalars;  // [slots][2]: largest score, sum of exponentials
  float* outputs;  // [slots][head_dim]
};

// Online-softmax state that combines several splits. Add the splits in ascending order.
struct RunningSum {
  float largest, sum;
  float before, now;  // factor of the earlier splits' outputs; factor of the new split's outputs

  HEARTH_HOST_DEVICE void Add(float split_largest, float split_sum) {
    const float most = exact::Max(largest, split_largest);
    before = exact::Exp(exact::Sub(largest, most));
    now = exact::Exp(exact::Sub(split_largest, most));
    largest = most;
    sum = exact::Fma(sum, before, exact::Mul(split_sum, now));
  }
  HEARTH_HOST_DEVICE float Output(float so_far, float of_split) const {
    return exact::Fma(so_far, before, exact::Mul(of_split, now));
  }
};

// Range [begin, end) of the keys that a row attends to, relative to the first key of the split.
struct Seen {
  int begin, end;
};

// The arguments of an attention over the KV cache, and where its rows, keys and values lie. An
// AttendItem is a tile of query rows; a thread block computes items, one KV head each, until no
// item is left.
struct AttendArguments {
  static constexpr int kHeadDimMax = 256, kSplitMax = 256;

  StepTable table;
  KvPlace place;
  bool is_global;
  float softcap;     // 0: no softcap
  const float* qkv;  // [rows][(heads + 2 * kv_heads) * head_dim]
  float* attended;   // [rows][heads * head_dim]
  SplitStates states;

  // Calls run(item, number, kv_head) for each item of this thread block.
  template <class RunItem>
  HEARTH_HOST_DEVICE void ForEachItem(BlockNumber block, const RunItem& run) const {
    const AttendList& list = table.lists[is_global];
    int number = block.number / place.kv_heads, kv_head = block.number % place.kv_heads;
    AttendItem item = list.items[number];  // never out of range: see LaunchAttention
    const int works = *list.item_count * place.kv_heads;
    WaitForEarlier();
    AllowNextLaunch();
    for (int work = block.number; work < works;) {
      run(item, number, kv_head);
      BARRIER();
      work += block.count;
      number = work / place.kv_heads;
      kv_head = work % place.kv_heads;
      if (work < works) item = list.items[number];
    }
  }

  HEARTH_HOST_DEVICE Seen SeenAt(int position, int split) const {
    const int base = split * place.split;
    int first = place.window > 0 ? position - place.window + 1 : 0;
    first = first > 0 ? first : 0;
    const int begin = first - base, end = position + 1 - base;
    return {begin > 0 ? begin : 0, end < place.split ? end : place.split};
  }
  HEARTH_HOST_DEVICE Seen SeenBy(const AttendItem& item, int row, int split) const {
    return SeenAt(item.position + TokenOf(item, row), split);
  }
  // For items with one token, avoids the integer division: it takes as long as a load from a cache.
  HEARTH_HOST_DEVICE int TokenOf(const AttendItem& item, int row) const {
    return item.tokens > 1 ? row / place.sharers : 0;
  }
  HEARTH_HOST_DEVICE int64_t QueryAt(const AttendItem& item, int row, int kv_head,
                                     int columns) const {
    const int token = TokenOf(item, row);
    return static_cast<int64_t>(item.row + token) * columns +
           (kv_head * place.sharers + row - token * place.sharers) * place.head_dim;
  }
  // Returns the layer's slice of the KV block of the item's split number i.
  HEARTH_HOST_DEVICE const std::byte* SliceOf(const AttendItem& item, int i) const {
    return InGlobal(i == 0 ? item.block : table.lists[is_global].blocks[item.first_block + i]) +
           place.offset;
  }
};

// Attention of query rows over the KV cache, in float32. kTileRows: maximum rows of an item. Kv:
// element type of keys and values, float or BFloat16; each element is widened to float when it is
// read from memory.
template <int kTileRows, class Kv>
struct AttendProgram : AttendArguments {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  // With few rows, memory latency dominates. Therefore a split's keys are loaded into registers,
  // and the copies of its values start, before the queries arrive.
  static constexpr bool kIsFew = kTileRows <= 4;
  // values: keys of a pipeline stage; number of stages
  static constexpr int kStageKeys = 16, kDepth = kIsFew ? 5 : 4;
  // scores: keys that one lane computes; keys that all warps compute in one pass
  static constexpr int kKeysEach = 2, kPassKeys = kWarps * 8;
  static constexpr int kRuns = kHeadDimMax / 16;  // runs of 16 columns of a key
  // Each thread computes a tile of kRowsEach x kColumnsEach outputs.
  static constexpr int kRowsEach = kTileRows < 4 ? kTileRows : 4, kColumnsEach = kIsFew ? 2 : 4;
  static constexpr int kRowGroups = kTileRows / kRowsEach;

  struct Shared {
    alignas(16) Kv values[kDepth][kStageKeys * kHeadDimMax];  // [key of the stage][head_dim]
    alignas(16) float queries[kTileRows][kHeadDimMax];
    alignas(16) float scores[kTileRows][kSplitMax];  // [row][key]: scores, later softmax weights
    float largest[kTileRows], partial[kTileRows][16];
  };

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    ForEachItem(block, [&](const AttendItem& item, int number, int kv_head) {
      RunItem(shared, item, number, kv_head);
    });
  }

 private:
  struct Outputs {
    PerThread<float, kRowsEach * kColumnsEach, kWarps> one, all;
    PerThread<RunningSum, kRowsEach, kWarps> sums;
  };

  HEARTH_HOST_DEVICE void RunItem(Shared* shared, const AttendItem& item, int number,
                                  int kv_head) const {
    Outputs outputs;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kRowsEach * kColumnsEach; ++i) outputs.all.At(warp, lane)[i] = 0;
        HEARTH_UNROLL
        for (int r = 0; r < kRowsEach; ++r) {
          outputs.sums.At(warp, lane)[r].largest = -kInfinity;
          outputs.sums.At(warp, lane)[r].sum = 0;
        }
      }
    }
    for (int i = 0; i < item.splits; ++i) {
      const Kv* keys = reinterpret_cast<const Kv*>(SliceOf(item, i)) +
                       static_cast<int64_t>(kv_head) * place.split * place.head_dim;
      RunSplit(shared, item, kv_head, i, keys, &outputs);
      Keep(shared, item, number, kv_head, item.first_split + i, &outputs);
      BARRIER();
    }
    if (item.is_whole) Finish(item, kv_head, &outputs);
  }

  HEARTH_HOST_DEVICE void LoadQueries(Shared* shared, const AttendItem& item, int kv_head) const {
    const int rows = item.tokens * place.sharers, dim = place.head_dim;
    const int columns = (place.heads + 2 * place.kv_heads) * dim;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int row = warp; row < kTileRows; row += kWarps) {
          const float* from = qkv + QueryAt(item, row < rows ? row : 0, kv_head, columns);
          for (int at = lane * 4; at < dim; at += 128) {
            Copy16(&shared->queries[row][at], from + at);
          }
        }
      }
    }
  }

  // Computes attention over split number i of the item.
  HEARTH_HOST_DEVICE void RunSplit(Shared* shared, const AttendItem& item, int kv_head, int i,
                                   const Kv* keys, Outputs* outputs) const {
    const int split = item.first_split + i;
    const Kv* values = keys + static_cast<int64_t>(place.kv_heads) * place.split * place.head_dim;
    // `first` to `last`: keys that at least one row attends to. `all`: keys that every row attends
    // to. Both bounds of a row's range ascend with its position.
    const Seen first = SeenAt(item.position, split);
    const Seen last = SeenAt(item.position + item.tokens - 1, split);
    const int begin = first.begin / kStageKeys * kStageKeys;
    const Seen all = {last.begin, first.end};
    const int stages = (last.end - begin + kStageKeys - 1) / kStageKeys;
    Keys known;
    if constexpr (kIsFew) LoadKeys(keys, begin, last.end, &known);
    if (i == 0) LoadQueries(shared, item, kv_head);
    CommitCopies();
    for (int stage = 0; stage < kDepth; ++stage) {
      if (stage < stages) LoadValues(shared, stage, values, begin + stage * kStageKeys);
      CommitCopies();
    }
    WaitCopies<kDepth>();
    BARRIER();  // the queries are in shared memory
    for (int key = begin; key < last.end; key += kPassKeys * kKeysEach) {
      if (kIsFew && key > begin) LoadKeys(keys, key, last.end, &known);
      Score(shared, keys, &known, key, last.end);
    }
    BARRIER();
    Weigh(shared, item, split, begin, begin + stages * kStageKeys);
    BARRIER();
    SumWeights(shared, begin, begin + stages * kStageKeys);
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int i = 0; i < kRowsEach * kColumnsEach; ++i) outputs->one.At(warp, lane)[i] = 0;
      }
    }
    for (int stage = 0; stage < stages; ++stage) {
      WaitCopies<kDepth - 2>();
      BARRIER();
      if (stage > 0) {
        const int next = stage + kDepth - 1;  // overwrites the buffer of the previous stage
        if (next < stages) {
          LoadValues(shared, next % kDepth, values, begin + next * kStageKeys);
        }
        CommitCopies();
      }
      const int key = begin + stage * kStageKeys;
      if (key >= all.begin && key + kStageKeys <= all.end) {
        AddAllValues(shared, key, stage % kDepth, &outputs->one);
      } else {
        AddSomeValues(shared, item, split, key, stage % kDepth, {first.begin, last.end}, all,
                      &outputs->one);
      }
    }
    WaitCopies<0>();
  }

  HEARTH_HOST_DEVICE void LoadValues(Shared* shared, int stage, const Kv* values, int key) const {
    constexpr int kPiece = 16 / sizeof(Kv);  // elements of an asynchronous copy
    const int pieces = kStageKeys * place.head_dim / kPiece;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int i = warp * 32 + lane; i < pieces; i += kThreads) {
          Copy16(&shared->values[stage][i * kPiece],
                 values + static_cast<int64_t>(key) * place.head_dim + i * kPiece);
        }
      }
    }
  }

  // The columns of the keys of one pass that a lane holds: [run of 16 columns][key].
  using Keys = PerThread<Float4, kIsFew ? kRuns * kKeysEach : 1, kWarps>;

  // Four lanes share a key; each lane computes four of the sixteen partial sums.
  HEARTH_HOST_DEVICE const Kv* KeyOf(const Kv* keys, int first, int end, int k, int warp,
                                     int lane) const {
    const int at = first + warp * 8 + lane / 4 + k * kPassKeys;
    return keys + static_cast<int64_t>(at < end ? at : end - 1) * place.head_dim + lane % 4 * 4;
  }
  HEARTH_HOST_DEVICE void LoadKeys(const Kv* keys, int first, int end, Keys* known) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int k = 0; k < kKeysEach; ++k) {
          const Kv* from = KeyOf(keys, first, end, k, warp, lane);
          HEARTH_UNROLL
          for (int run = 0; run < kRuns; ++run) {
            if (run * 16 >= place.head_dim) continue;
            known->At(warp, lane)[run * kKeysEach + k] = LoadFloats<4>(from + run * 16);
          }
        }
      }
    }
  }

  // Computes the scores of all rows for the keys of one pass, which begins at key `first`.
  HEARTH_HOST_DEVICE void Score(Shared* shared, const Kv* keys, Keys* known, int first,
                                int end) const {
    const int dim = place.head_dim;
    FOR_WARPS(warp, kWarps) {
      PerThread<float, kTileRows * kKeysEach * 4, 1> sums;
      FOR_LANES(lane) {
        float* own = sums.At(0, lane);
        HEARTH_UNROLL
        for (int i = 0; i < kTileRows * kKeysEach * 4; ++i) own[i] = 0;
        const Kv* from[kKeysEach];
        HEARTH_UNROLL
        for (int k = 0; k < kKeysEach; ++k) from[k] = KeyOf(keys, first, end, k, warp, lane);
        HEARTH_UNROLL_BY((kIsFew ? kRuns : 2))
        for (int run = 0; run < kRuns; ++run) {
          const int at = run * 16;
          if (at >= dim) break;
          Float4 wide[kKeysEach];
          HEARTH_UNROLL
          for (int k = 0; k < kKeysEach; ++k) {
            wide[k] =
                kIsFew ? known->At(warp, lane)[run * kKeysEach + k] : LoadFloats<4>(from[k] + at);
          }
          HEARTH_UNROLL
          for (int r = 0; r < kTileRows; ++r) {
            const Float4 query = LoadFloat4(&shared->queries[r][at + lane % 4 * 4]);
            HEARTH_UNROLL
            for (int i = 0; i < kKeysEach * 4; ++i) {
              float& sum = own[r * kKeysEach * 4 + i];
              sum = exact::Fma(query.v[i % 4], wide[i / 4].v[i % 4], sum);
            }
          }
        }
      }
      // First half of the tree sum (TreeSum): the addends j + 8 and j + 4 lie in other lanes.
      PerThread<float, 1, 1> other;
      HEARTH_UNROLL
      for (int i = 0; i < kTileRows * kKeysEach * 4; ++i) {
        HEARTH_UNROLL
        for (int mask = 2; mask >= 1; --mask) {
          ShuffleXor(&sums, i, mask, 0, &other, 0);
          FOR_LANES(lane) {
            float& sum = sums.At(0, lane)[i];
            sum = exact::Add(sum, other.At(0, lane)[0]);
          }
        }
      }
      FOR_LANES(lane) {
        HEARTH_UNROLL
        for (int r = 0; r < kTileRows; ++r) {
          HEARTH_UNROLL
          for (int k = 0; k < kKeysEach; ++k) {
            const float* four = sums.At(0, lane) + (r * kKeysEach + k) * 4;
            const int key = first + warp * 8 + lane / 4 + k * kPassKeys;
            if (lane % 4 == 0 && key < end) {
              shared->scores[r][key] =
                  exact::Add(exact::Add(four[0], four[2]), exact::Add(four[1], four[3]));
            }
          }
        }
      }
    }
  }

  // Turns scores into softmax weights. A key outside a row's range gets weight 0. One warp
  // processes one row.
  HEARTH_HOST_DEVICE void Weigh(Shared* shared, const AttendItem& item, int split, int begin,
                                int end) const {
    FOR_WARPS(warp, kWarps) {
      for (int row = warp; row < kTileRows; row += kWarps) {
        const Seen seen = SeenBy(item, row, split);
        float* scores = shared->scores[row];
        PerThread<float, 1, 1> most, other;
        FOR_LANES(lane) {
          float largest = -kInfinity;
          for (int key = begin + lane; key < end; key += 32) {
            if (key < seen.begin || key >= seen.end) continue;
            if (softcap > 0) {
              scores[key] = exact::Mul(exact::Tanh(exact::Div(scores[key], softcap)), softcap);
            }
            largest = exact::Max(largest, scores[key]);
          }
          most.At(0, lane)[0] = largest;
        }
        HEARTH_UNROLL
        for (int mask = 16; mask >= 1; mask /= 2) {
          ShuffleXor(&most, 0, mask, 0, &other, 0);
          FOR_LANES(lane) {
            float& largest = most.At(0, lane)[0];
            largest = exact::Max(largest, other.At(0, lane)[0]);
          }
        }
        FOR_LANES(lane) {
          const float largest = most.At(0, lane)[0];
          HEARTH_UNROLL_BY(4)
          for (int key = begin + lane; key < end; key += 32) {
            const bool sees = key >= seen.begin && key < seen.end;
            scores[key] = sees ? exact::Exp(exact::Sub(scores[key], largest)) : 0.0f;
          }
          if (lane == 0) shared->largest[row] = largest;
        }
      }
    }
  }

  // Sums each row's softmax weights into sixteen partial sums.
  HEARTH_HOST_DEVICE void SumWeights(Shared* shared, int begin, int end) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int row = warp; row < kTileRows; row += kWarps) {
          if (lane >= 16) continue;
          float sum = 0;
          HEARTH_UNROLL_BY(8)
          for (int key = begin + lane; key < end; key += 16) {
            sum = exact::Add(sum, shared->scores[row][key]);
          }
          shared->partial[row][lane] = sum;
        }
      }
    }
  }

  // Accumulates a stage's values, each multiplied by its softmax weight. REQUIRES: every row
  // attends to all keys of the stage.
  template <class Sums>
  HEARTH_HOST_DEVICE void AddAllValues(const Shared* shared, int first, int place_of_stage,
                                       Sums* sums) const {
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int group = GroupOf(warp, lane);
        if (group >= kRowGroups) continue;
        const Kv* values = &shared->values[place_of_stage][ColumnOf(warp, lane)];
        float* own = sums->At(warp, lane);
        HEARTH_UNROLL
        for (int key = 0; key < kStageKeys; key += 4) {
          Float4 weights[kRowsEach];
          HEARTH_UNROLL
          for (int r = 0; r < kRowsEach; ++r) {
            weights[r] = LoadFloat4(&shared->scores[group * kRowsEach + r][first + key]);
          }
          HEARTH_UNROLL
          for (int k = 0; k < 4; ++k) {
            const auto value = LoadFloats<kColumnsEach>(values + (key + k) * place.head_dim);
            HEARTH_UNROLL
            for (int i = 0; i < kRowsEach * kColumnsEach; ++i) {
              own[i] =
                  exact::Fma(weights[i / kColumnsEach].v[k], value.v[i % kColumnsEach], own[i]);
            }
          }
        }
      }
    }
  }

  // Accumulates a stage's values for a stage in which some rows attend only to some keys. `any`:
  // keys that at least one row attends to.
  template <class Sums>
  HEARTH_HOST_DEVICE void AddSomeValues(const Shared* shared, const AttendItem& item, int split,
                                        int first, int place_of_stage, const Seen& any,
                                        const Seen& all, Sums* sums) const {
    const int begin = any.begin > first ? any.begin : first;
    const int end = any.end < first + kStageKeys ? any.end : first + kStageKeys;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int group = GroupOf(warp, lane);
        if (group >= kRowGroups) continue;
        const Kv* values = &shared->values[place_of_stage][ColumnOf(warp, lane)];
        float* own = sums->At(warp, lane);
        Seen seen[kRowsEach];
        HEARTH_UNROLL
        for (int r = 0; r < kRowsEach; ++r) {
          seen[r] = item.tokens > 1 ? SeenBy(item, group * kRowsEach + r, split) : all;
        }
        HEARTH_UNROLL_BY(2)
        for (int key = begin; key < end; ++key) {
          const auto value = LoadFloats<kColumnsEach>(values + (key - first) * place.head_dim);
          HEARTH_UNROLL
          for (int r = 0; r < kRowsEach; ++r) {
            if (key < seen[r].begin || key >= seen[r].end) continue;
            const float weight = shared->scores[group * kRowsEach + r][key];
            HEARTH_UNROLL
            for (int i = 0; i < kColumnsEach; ++i) {
              float& sum = own[r * kColumnsEach + i];
              sum = exact::Fma(weight, value.v[i], sum);
            }
          }
        }
      }
    }
  }

  // Returns the group of rows that a thread computes; the thread computes kColumnsEach columns.
  HEARTH_HOST_DEVICE int GroupOf(int warp, int lane) const {
    const int thread = warp * 32 + lane, of_row = place.head_dim / kColumnsEach;
    return kRowGroups == 1 ? thread >= of_row : thread / of_row;
  }
  HEARTH_HOST_DEVICE int ColumnOf(int warp, int lane) const {
    const int thread = warp * 32 + lane, of_row = place.head_dim / kColumnsEach;
    return (kRowGroups == 1 ? thread : thread % of_row) * kColumnsEach;
  }

  // Merges a split's result into the running result, or writes its softmax state for
  // CombineProgram.
  HEARTH_HOST_DEVICE void Keep(const Shared* shared, const AttendItem& item, int number,
                               int kv_head, int split, Outputs* outputs) const {
    const int rows = item.tokens * place.sharers;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int group = GroupOf(warp, lane);
        if (group >= kRowGroups) continue;
        HEARTH_UNROLL
        for (int r = 0; r < kRowsEach; ++r) {
          const int row = group * kRowsEach + r;
          if (row >= rows) continue;
          const Seen seen = SeenBy(item, row, split);
          if (seen.begin >= seen.end) continue;
          const float* one = outputs->one.At(warp, lane) + r * kColumnsEach;
          const float largest = shared->largest[row];
          if (item.is_whole) {
            RunningSum& running = outputs->sums.At(warp, lane)[r];
            running.Add(largest, exact::TreeSum(shared->partial[row]));
            float* all = outputs->all.At(warp, lane) + r * kColumnsEach;
            HEARTH_UNROLL
            for (int i = 0; i < kColumnsEach; ++i) all[i] = running.Output(all[i], one[i]);
            continue;
          }
          const int64_t slot =
              (static_cast<int64_t>(number) * place.kv_heads + kv_head) * kTileRows + row;
          const int column = ColumnOf(warp, lane);
          if (column == 0) {
            states.scalars[slot * 2] = largest;
            states.scalars[slot * 2 + 1] = exact::TreeSum(shared->partial[row]);
          }
          Floats<kColumnsEach> state;
          HEARTH_UNROLL
          for (int i = 0; i < kColumnsEach; ++i) state.v[i] = one[i];
          StoreFloats(states.outputs + slot * place.head_dim + column, state);
        }
      }
    }
  }

  HEARTH_HOST_DEVICE void Finish(const AttendItem& item, int kv_head, Outputs* outputs) const {
    const int rows = item.tokens * place.sharers;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int group = GroupOf(warp, lane);
        if (group >= kRowGroups) continue;
        HEARTH_UNROLL
        for (int r = 0; r < kRowsEach; ++r) {
          const int row = group * kRowsEach + r;
          if (row >= rows) continue;
          const float inverse = exact::Div(1.0f, outputs->sums.At(warp, lane)[r].sum);
          const float* all = outputs->all.At(warp, lane) + r * kColumnsEach;
          float* to = attended + QueryAt(item, row, kv_head, place.heads * place.head_dim) +
                      ColumnOf(warp, lane);
          HEARTH_UNROLL
          for (int i = 0; i < kColumnsEach; ++i) to[i] = exact::Mul(all[i], inverse);
        }
      }
    }
  }
};

// Combines the softmax states of a row's splits in ascending order. If an AttendProgram has
// combined them, reads the result. One thread block for each query head of each row.
struct CombineProgram {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kEach = 2;
  struct Shared {};

  StepTable table;
  KvPlace place;
  bool is_global;
  int tile_rows;  // kTileRows of the AttendProgram
  SplitStates states;
  float* attended;        // [rows][heads * head_dim]
  IntegerRows quantized;  // of `attended`; not written if null. REQUIRES: head_dim % 32 == 0

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const int row = block.number / place.heads, head = block.number % place.heads;
    const int rows = *table.row_count;
    const RowItems items = table.lists[is_global].row_items[row];
    WaitForEarlier();
    AllowNextLaunch();
    if (row >= rows || (items.count == 0 && quantized.ints == nullptr)) return;
    const int dim = place.head_dim;
    float* const to = attended + (static_cast<int64_t>(row) * place.heads + head) * dim;
    FOR_WARPS(warp, kWarps) {
      PerThread<float, kEach, 1> outputs;
      FOR_LANES(lane) {
        RunningSum running = {-kInfinity, 0, 0, 0};
        float sums[kEach] = {};
        HEARTH_UNROLL_BY(4)
        for (int i = 0; i < items.count; ++i) {
          const int64_t item = items.first + i;
          const int64_t slot =
              (item * place.kv_heads + head / place.sharers) * tile_rows + head % place.sharers;
          running.Add(states.scalars[slot * 2], states.scalars[slot * 2 + 1]);
          HEARTH_UNROLL
          for (int n = 0; n < kEach; ++n) {
            const int column = n * kThreads + warp * 32 + lane;
            if (column >= dim) continue;
            sums[n] = running.Output(sums[n], states.outputs[slot * dim + column]);
          }
        }
        const float inverse = exact::Div(1.0f, running.sum);
        HEARTH_UNROLL
        for (int n = 0; n < kEach; ++n) {
          const int column = n * kThreads + warp * 32 + lane;
          if (column >= dim) continue;
          const float output = items.count > 0 ? exact::Mul(sums[n], inverse) : to[column];
          to[column] = output;
          outputs.At(0, lane)[n] = output;
        }
      }
      HEARTH_UNROLL
      for (int n = 0; n < kEach && quantized.ints != nullptr; ++n) {
        const int column = n * kThreads + warp * 32;
        if (column >= dim) continue;
        QuantizeBlock(&outputs, n, (head * dim + column) / IntegerTile::kInputs, quantized, row);
      }
    }
  }
};

// Programs that quantize complete KV blocks, and that dequantize them for attention. The order of
// operations is that of worker/kernels/quantized/quantized_plane.h, so the bits are the same.
// proto/kv_quantization.h describes the layout of the bytes. Kv: element type of the keys and
// values that a program reads or writes unquantized, float or BFloat16.

// A KV block in both forms, each at its first layer; and the members of KvQuantization.
struct QuantizedBlock {
  std::byte* plain;  // Kv [layer][K,V][kv_head][token][head_dim]
  std::byte* quantized;
  int16_t bits, group;
  int8_t axis_key, axis_value;
};

// One layer of a list of KV blocks, which the launch holds by value.
struct QuantizedSlices {
  static constexpr int kMost = 64;

  int count, number;  // number of blocks; number of the layer within its layer group
  int tokens, kv_heads, head_dim;
  QuantizedBlock blocks[kMost];
};

// A plane: the keys or the values of one KV head in one layer of one KV block.
template <class Kv>
struct QuantizedPlaneView {
  int tokens, dim, bits, group, axis, width, groups;
  bool is_value;
  Kv* plain;        // [tokens][dim]
  uint8_t* codes;   // [tokens][width]
  uint16_t* steps;  // [groups], then the least values [groups]; bfloat16
  uint8_t* end;     // end of the quantized slice, if this is the last plane of the slice; else null

  HEARTH_HOST_DEVICE QuantizedPlaneView(const QuantizedSlices& slices, int number) {
    const int planes = 2 * slices.kv_heads, plane = number % planes;
    const QuantizedBlock& block = slices.blocks[number / planes];
    tokens = slices.tokens;
    dim = slices.head_dim;
    bits = block.bits;
    group = block.group;
    is_value = plane >= slices.kv_heads;
    axis = is_value ? block.axis_value : block.axis_key;
    width = dim * bits / 8;
    groups = tokens * dim / group;
    const int64_t values = static_cast<int64_t>(tokens) * dim;
    const int64_t bytes = static_cast<int64_t>(tokens) * width + 4 * static_cast<int64_t>(groups);
    const int64_t slice = (planes * bytes + 63) / 64 * 64;
    auto* const from = reinterpret_cast<uint8_t*>(block.quantized) + slices.number * slice;
    plain = reinterpret_cast<Kv*>(block.plain) +
            (static_cast<int64_t>(slices.number) * planes + plane) * values;
    codes = from + plane * bytes;
    steps = reinterpret_cast<uint16_t*>(codes + static_cast<int64_t>(tokens) * width);
    end = plane + 1 == planes ? from + slice : nullptr;
  }
  HEARTH_HOST_DEVICE int GroupOf(int token, int column) const {
    return axis == 0 ? (token * dim + column) / group : token / group * dim + column;
  }
  // Returns the index in `plain` of the group's member `i`. Members ascend by token, then by
  // column.
  HEARTH_HOST_DEVICE int MemberOf(int number, int i) const {
    return axis == 0 ? number * group + i : (number / dim * group + i) * dim + number % dim;
  }
};

HEARTH_HOST_DEVICE float WidenedBf16(uint16_t bits) {
  return exact::FloatOf(static_cast<uint32_t>(bits) << 16);
}

// Quantizes the blocks. One thread block for each plane.
template <class Kv>
struct QuantizeKvProgram {
  using Plane = QuantizedPlaneView<Kv>;
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  struct Shared {};

  QuantizedSlices slices;

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const Plane plane(slices, block.number);
    WaitForEarlier();
    AllowNextLaunch();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int group = warp * 32 + lane; group < plane.groups; group += kThreads) {
          SetScale(plane, group);
        }
      }
    }
    BARRIER();  // all scales are written
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int i = warp * 32 + lane; i < plane.tokens * plane.width; i += kThreads) {
          plane.codes[i] = CodeOf(plane, i / plane.width, i % plane.width);
        }
        auto* const padding = reinterpret_cast<uint8_t*>(plane.steps + 2 * plane.groups);
        for (int i = warp * 32 + lane; plane.end != nullptr && padding + i < plane.end;
             i += kThreads) {
          padding[i] = 0;
        }
      }
    }
  }

 private:
  // Rounds to bfloat16, away from zero. Returns the bits.
  HEARTH_HOST_DEVICE static uint16_t AwayFromZero(float value) {
    const uint32_t bits = exact::BitsOf(value);
    return static_cast<uint16_t>((bits >> 16) + ((bits & 0xffff) != 0 ? 1 : 0));
  }
  HEARTH_HOST_DEVICE static void SetScale(const Plane& plane, int group) {
    float least = kInfinity, largest = -kInfinity;
    bool is_finite = true;
    for (int i = 0; i < plane.group; ++i) {
      const float value = LoadFloats<1>(plane.plain + plane.MemberOf(group, i)).v[0];
      is_finite = is_finite && (exact::BitsOf(value) & 0x7f800000u) != 0x7f800000u;
      least = value < least ? value : least;
      largest = value > largest ? value : largest;
    }
    constexpr uint16_t kNan = 0x7fc0;
    const uint32_t bits = exact::BitsOf(least);
    const uint16_t down = bits >> 31 != 0 ? AwayFromZero(least) : static_cast<uint16_t>(bits >> 16);
    const auto steps = static_cast<float>((1u << plane.bits) - 1);
    const uint16_t step = AwayFromZero(exact::Div(exact::Sub(largest, WidenedBf16(down)), steps));
    plane.steps[group] = is_finite ? step : kNan;
    plane.steps[plane.groups + group] = is_finite ? down : kNan;
  }
  // Rounds down. REQUIRES: 1 <= value < 2^23.
  HEARTH_HOST_DEVICE static uint32_t WholePart(float value) {
    const uint32_t bits = exact::BitsOf(value);
    return ((bits & 0x7fffffu) | 0x800000u) >> (150 - (bits >> 23));
  }
  HEARTH_HOST_DEVICE static uint8_t CodeOf(const Plane& plane, int token, int first) {
    const uint32_t most = (1u << plane.bits) - 1;
    uint32_t code = 0;
    for (int column = first, shift = 0; column < plane.dim;
         column += plane.width, shift += plane.bits) {
      const int group = plane.GroupOf(token, column);
      const float least = WidenedBf16(plane.steps[plane.groups + group]);
      const float plain = LoadFloats<1>(plane.plain + token * plane.dim + column).v[0];
      const float value = exact::Sub(plain, least);
      const float steps = exact::Add(exact::Div(value, WidenedBf16(plane.steps[group])), 0.5f);
      if (!(steps >= 1)) continue;  // also if `steps` is NaN
      code |= (steps >= static_cast<float>(most) ? most : WholePart(steps)) << shift;
    }
    return static_cast<uint8_t>(code);
  }
};

// Dequantizes the blocks. One thread block for each plane. In bfloat16, values are finite
// (KvPlace::values_are_finite).
template <class Kv>
struct DequantizeKvProgram {
  using Plane = QuantizedPlaneView<Kv>;
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  struct Shared {};

  QuantizedSlices slices;

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const Plane plane(slices, block.number);
    WaitForEarlier();
    AllowNextLaunch();
    const uint32_t mask = (1u << plane.bits) - 1;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int i = warp * 32 + lane; i < plane.tokens * plane.width; i += kThreads) {
          const int token = i / plane.width;
          const uint32_t code = plane.codes[i];
          for (int column = i % plane.width, shift = 0; column < plane.dim;
               column += plane.width, shift += plane.bits) {
            const int group = plane.GroupOf(token, column);
            const auto steps = static_cast<float>(code >> shift & mask);
            Put(plane, token * plane.dim + column,
                exact::Fma(steps, WidenedBf16(plane.steps[group]),
                           WidenedBf16(plane.steps[plane.groups + group])));
          }
        }
      }
    }
  }

 private:
  HEARTH_HOST_DEVICE static void Put(const Plane& plane, int at, float value) {
    if constexpr (sizeof(Kv) == sizeof(float)) {
      plane.plain[at] = value;
    } else {
      const uint16_t bits = Bf16Of(value);
      plane.plain[at] = {plane.is_value ? exact::FiniteBf16(bits) : bits};
    }
  }
};

// Copies one layer of KV blocks in bfloat16 to blocks in float32, both [layer][K,V][kv_head][token]
// [head_dim]. kBlocksEach thread blocks for each KV block.
struct WidenKvProgram {
  static constexpr int kWarps = 8, kThreads = kWarps * 32, kBlocksEach = 16, kEach = 4;
  struct Shared {};
  struct Pair {
    const std::byte* from;
    std::byte* to;
  };
  static constexpr int kMost = 64;

  int count, number;     // number of pairs; number of the layer within its layer group
  int64_t slice_values;  // values of one layer; a multiple of kEach
  Pair pairs[kMost];

  HEARTH_HOST_DEVICE void Run(Shared*, BlockNumber block) const {
    const Pair& pair = pairs[block.number / kBlocksEach];
    const auto* const from = reinterpret_cast<const BFloat16*>(pair.from) + number * slice_values;
    auto* const to = reinterpret_cast<float*>(pair.to) + number * slice_values;
    WaitForEarlier();
    AllowNextLaunch();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int thread = block.number % kBlocksEach * kThreads + warp * 32 + lane;
        for (int64_t i = int64_t{thread} * kEach; i < slice_values;
             i += int64_t{kThreads} * kBlocksEach * kEach) {
          StoreFloats(to + i, LoadFloats<kEach>(from + i));
        }
      }
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_ATTEND_PROGRAMS_H_
